"""Signals as flags that the loop looks at between micro-batches.

    SIGINT (Ctrl-C)   save and stop; a second one leaves at once, with exit code 130 and nothing saved
    SIGTERM           save and stop; more of them change nothing, so that a saving in progress is finished
    SIGUSR1           save and go on

A handler may run between any two bytecodes, in the middle of writing a file or a log line, so it only sets a flag.
"""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SHOW_CURSOR = b"\x1b[?25h\n"


class Signals:
    """A context manager. Python delivers signals to the main thread only: used in another one, it does nothing."""

    def __init__(self) -> None:
        self.stop: int | None = None  # the first of SIGINT and SIGTERM that came: save and stop
        self.save = False  # SIGUSR1 came: save and go on; whoever saves sets it back
        self._num_interrupts = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number, handler in [
                (signal.SIGINT, self._interrupt),
                (signal.SIGTERM, self._terminate),
                (signal.SIGUSR1, self._ask_to_save),
            ]:
                self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: set by C code, which Python cannot set again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._num_interrupts += 1
        if self._num_interrupts > 1:
            _leave()
        self._terminate(number, frame)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if self.stop is None:
            self.stop = number

    def _ask_to_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True


def _leave() -> None:
    """Ends the process now, whatever it is doing. A progress bar may have hidden the cursor, which must come back."""
    try:
        if os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb":
            os.write(2, _SHOW_CURSOR)
    finally:
        os._exit(128 + signal.SIGINT)

"""Where text for people goes: standard error, and the log file of the run.

On a terminal a bar may be drawn there (bar.py); then each line is printed above it through the same console, which
draws the bar again below. Elsewhere (nohup, Slurm, CI, a pipe) lines are lines.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

ROW = {"row": True}  # `extra` of a record that the bar shows better
COMMON = {"common": True}  # of one that all processes of a run come to: the first one says it
_console: "Console | None" = None  # where a bar is being drawn


def has_bar() -> bool:
    """Whether a bar can be drawn. rich would also say so in a pipe if FORCE_COLOR is set, as it often is in CI."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextlib.contextmanager
def draw_on() -> Iterator["Console"]:
    """The console of a bar; meanwhile records of the log are printed through it."""
    global _console
    from rich.console import Console

    _console = Console(stderr=True, highlight=False, markup=False, emoji=False)  # leaves colours out if NO_COLOR is set
    try:
        yield _console
    finally:
        _console = None


def _leave_the_bar() -> None:
    """A forked data worker has no part in the bar, whose lock may have been held when it was forked and stay so."""
    global _console
    if _console is not None:
        _console = None
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


os.register_at_fork(after_in_child=_leave_the_bar)


def set_up_logging(log_file: Path | None, quiet: bool = False, name: str = "") -> Callable[[], None]:
    """Sends the "fullstride" logger to standard error (only warnings if quiet) and to a file. Gives what undoes it.

    name: of a process beside the first one.
    """
    package = logging.getLogger("fullstride")
    handlers: list[logging.Handler] = [_Lines(logging.WARNING if quiet else logging.INFO, name)]
    if log_file is not None:
        handlers.append(_File(log_file))
    undo = contextlib.ExitStack()
    undo.callback(setattr, package, "propagate", package.propagate)
    undo.callback(package.setLevel, package.level)
    for handler in handlers:
        package.addHandler(handler)
        undo.callback(handler.close)
        undo.callback(package.removeHandler, handler)
    package.setLevel(logging.INFO)
    package.propagate = False  # or a script with a logger of its own would see each line twice
    return undo.close


class _Lines(logging.Handler):
    """Lines on standard error, above the bar if there is one."""

    def __init__(self, level: int, name: str) -> None:
        super().__init__(level)
        self._name = name
        self._clock = logging.Formatter(datefmt="%H:%M:%S")

    def emit(self, record: logging.LogRecord) -> None:
        if self._name and getattr(record, "common", False):
            return
        try:
            text = f"{self._name}: " * bool(self._name) + record.getMessage()
        except Exception:  # a wrong format: said as logging says it
            self.handleError(record)
            return
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        if _console is None and not has_bar():
            text = f"{self._clock.formatTime(record, self._clock.datefmt)} {text}"
        # Nobody reads us any more (a closed pipe, terminal or file), which is no reason to stop training.
        with contextlib.suppress(OSError, ValueError):
            if _console is None:
                sys.stderr.write(text + "\n")
                sys.stderr.flush()
            elif not getattr(record, "row", False):
                _console.print(text, soft_wrap=True)


class _File(logging.FileHandler):
    """Says once that it cannot be written, instead of a traceback for each line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        self._failed = False

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written is tried again
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed = True
            logging.getLogger(__name__).warning("cannot write %s: %s", self.baseFilename, error.strerror)

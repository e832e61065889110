"""The processes of `tune`, seen from the one that asks them: what they hold together stays below a limit.

A child is asked by a line of JSON and answers by one. Between two questions it rests, and lives on: to start it again
would take longer than most measurements. Where memory becomes scarce, those at rest are ended first, then the one at
work; TooMuchMemory says so. A session of its own keeps Ctrl-C away from a child: it is its parent that ends it.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any

from ...bench.step import process
from ...bench.step.process import SideDied, SideFailed, SideLate
from ...machine import memory
from ...recipes import config_files
from ...recipes.config import Config
from . import resident

_LOOK = 0.1  # seconds from one look at the memory to the next
_BAD_INPUT = "input"


class TooMuchMemory(SideFailed):
    """It was ended, or not even started."""


class Child:
    """A program of this folder. `facts` is what it said first."""

    def __init__(self, program: str, wish: dict[str, Any], family: "Children", seconds: float | None) -> None:
        self.is_open = True
        self._family, self._received = family, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{program}", json.dumps(wish)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
            env=process.our_environment(), start_new_session=True,
        )  # fmt: skip
        family.add(self)
        began = time.monotonic()
        self.facts = self._answer(seconds)
        self.startup = time.monotonic() - began

    def ask(self, request: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """SideLate if there is no answer within so many seconds."""
        assert self._process.stdin
        self._family.add(self)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            error = self._failed()
            self.close()
            raise error from None
        return self._answer(seconds)

    def rest(self) -> None:
        """Waits until it and its workers do nothing."""
        for pid in (self._process.pid, *resident.descendants(self._process.pid)):
            process.rest(pid)

    def held(self) -> int:
        return resident.held(self._process.pid)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        others = resident.descendants(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its workers and other processes, too
        self._process.wait()
        resident.wait_until_freed(others)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe
            pipe.close()
        self._family.forget(self)

    def _answer(self, seconds: float | None) -> dict[str, Any]:
        try:
            line = self._line(seconds)
        except BaseException:  # also a signal: what it would answer later is no answer to the next question
            self.close()
            raise
        answer: dict[str, Any] = json.loads(line)
        if "error" not in answer:
            return answer
        self.close()
        if answer.get("kind") == _BAD_INPUT:
            raise ValueError(answer["error"])
        raise SideFailed(answer["error"])

    def _line(self, seconds: float | None) -> bytes:
        assert self._process.stdout
        began = time.monotonic()
        while b"\n" not in self._received:
            self._family.look(self)
            if seconds is not None and time.monotonic() > began + seconds:
                raise SideLate(f"no answer within {seconds:.0f} s")
            if select.select([self._process.stdout], [], [], _LOOK)[0]:
                block = os.read(self._process.stdout.fileno(), 1 << 16)
                if not block:
                    raise self._failed()
                self._received += block
        line, self._received = self._received.split(b"\n", 1)
        return line

    def _failed(self) -> SideFailed:
        code = self._process.wait()
        if code < 0:
            return SideDied(f"its process was ended by {signal.Signals(-code).name}")
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return SideFailed(f"its process ended with exit code {code}" + (f": {lines[-1].strip()}" if lines else ""))


class Children:
    """Those that live; at the end of the `with` none. limit: bytes for all together, None for no limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._living: list[Child] = []  # the one that was asked last stands last

    def start(self, program: str, wish: dict[str, Any], seconds: float | None = None) -> Child:
        """seconds: within which it must have started."""
        return Child(program, wish, self, seconds)

    def add(self, child: Child) -> None:
        self.forget(child)
        self._living.append(child)

    def forget(self, child: Child) -> None:
        if child in self._living:
            self._living.remove(child)

    def look(self, active: Child) -> None:
        """While `active` works."""
        if self.limit is None:
            return
        while sum(child.held() for child in self._living) > self.limit:
            if self._living[0] is active:
                raise TooMuchMemory(too_much("held", active.held(), self.limit))
            self._living[0].close()

    def close(self) -> None:
        for child in list(self._living):
            child.close()

    def __enter__(self) -> "Children":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Estimator:
    """What training a config will hold, by estimates.py; its process is started when it is asked first."""

    def __init__(self, children: Children, config: Config) -> None:
        self._children, self._wish = children, {"config": config_files.to_yaml(config)}
        self._child: Child | None = None

    @property
    def facts(self) -> dict[str, Any]:
        return self._started().facts

    def bytes_of(self, micro_batch: int, accumulate: int, precision: str, processes: int = 1) -> int:
        request = {"micro_batch": micro_batch, "accumulate": accumulate, "precision": precision}
        request |= {"processes": processes}
        size: int = self._started().ask(request)["bytes"]
        return size

    def close(self) -> None:
        if self._child is not None:
            self._child.close()

    def _started(self) -> Child:
        if self._child is None or not self._child.is_open:
            self._child = self._children.start("estimates", self._wish)
        return self._child


def too_much(how: str, size: int, limit: int) -> str:
    return f"too much memory: {how} {memory.as_size(size)}, {memory.as_size(limit)} may be used"

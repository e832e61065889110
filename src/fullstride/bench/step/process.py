"""The processes of `bench step` and `compare`: starting one, asking it, and waiting until it rests."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ...machine import onednn

_SCRIPT = Path(__file__).with_name("side.py")
_REST_POLL, _REST_LOOKS, _REST_LIMIT = 0.02, 3, 5.0  # seconds, looks in a row, seconds


class SideFailed(ChildProcessError):
    """A side could not go on. An OSError, which the command shows as one line."""


class SideLate(SideFailed):
    """A side did not answer in the time it was given."""


class SideDied(SideFailed):
    """The process of a side was ended by what it computed."""


_DEATHS = {
    signal.SIGILL: "illegal instruction on this CPU", signal.SIGFPE: "floating-point exception",
    signal.SIGSEGV: "segmentation fault", signal.SIGBUS: "bus error", signal.SIGABRT: "aborted",
}  # fmt: skip


class Side:
    """A process of side.py. `facts` is what it said of itself when its model stood."""

    def __init__(self, name: str, config: dict[str, Any], limit: float | None = None) -> None:
        self.name, self.config = name, config
        self.losses: list[float] = []  # of each step
        self.seconds: list[float] = []
        self.peaks: list[int] = []  # bytes that the process had held at most, after each step
        self.frozen: list[
            tuple[int, list[str]]
        ] = []  # steps after which other layers are frozen than before, and these
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._received = b""
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), json.dumps(config)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
            env=environment_of(config),
        )  # fmt: skip
        try:
            self.facts = self._answer(limit)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, steps: int, limit: float | None = None) -> dict[str, Any]:
        """Trains; `limit` in seconds."""
        answer = self._ask({"steps": steps}, limit)
        self.losses += answer["losses"]
        self.seconds += answer["seconds"]
        self.peaks += answer["peaks"]
        self.frozen += [(step, layers) for step, layers in answer["frozen"]]
        return answer

    def again(self, first: int, steps: int, limit: float | None = None) -> dict[str, Any]:
        """Trains on the data of these steps once more, which does not count: `losses` and the others stay."""
        return self._ask({"again": [first, steps]}, limit)

    def explain(self, limit: float | None = None) -> dict[str, Any]:
        """What Fullstride has done so far."""
        return self._ask({"explain": 1}, limit)

    def evaluate(self) -> float:
        """The mean loss over the held-out data, which Folder.provide_valid() has written."""
        loss: float = self._ask({"evaluate": 1}, None)["loss"]
        return loss

    def save(self, path: Path) -> None:
        """Its weights, in fp32."""
        self._ask({"save": str(path)}, None)

    def profile(self, steps: int = 2) -> dict[str, Any]:
        return self._ask({"profile": steps}, None)

    def rest(self) -> None:
        rest(self.pid)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _ask(self, request: dict[str, Any], limit: float | None) -> dict[str, Any]:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._failed() from None
        return self._answer(limit)

    def _answer(self, limit: float | None) -> dict[str, Any]:
        assert self._process.stdout
        deadline = None if limit is None else time.monotonic() + limit
        while b"\n" not in self._received:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise SideLate(f"{self.name}: no answer within {limit:.0f} s")
            block = os.read(self._process.stdout.fileno(), 1 << 16)
            if not block:
                raise self._failed()
            self._received += block
        line, self._received = self._received.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise SideFailed(f"{self.name}: {answer['error']}")
        return answer

    def _failed(self) -> SideFailed:
        code = self._process.wait()
        death = _DEATHS.get(-code)  # type: ignore[call-overload]
        if death:
            return SideDied(f"{self.name}: {death}")
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return SideFailed(f"{self.name}: its process ended, {how}" + (f": {lines[-1].strip()}" if lines else ""))


def environment_of(config: dict[str, Any]) -> dict[str, str]:
    """Of a side. One of a single technique of ours over stock PyTorch ("over_stock") keeps the heap only if that is the
    technique; "environment" are variables of its own."""
    if not (config.get("fullstride") or config.get("imports")):
        return stock_environment()
    found = our_environment()
    if config.get("over_stock"):
        found.pop("FULLSTRIDE_HEAP", None)
    return found | config.get("environment", {})


def stock_environment() -> dict[str, str]:
    """The environment as if this package were not there: without its settings, and without its cap on oneDNN.

    The package sets up malloc by calls, never by variables: MALLOC_ and the like are the user's, and of both sides.
    """
    return {name: value for name, value in onednn.user_environment().items() if not name.startswith("FULLSTRIDE_")}


def our_environment() -> dict[str, str]:
    """The environment as it is, and this package to be found in it however this process found it."""
    package = str(Path(__file__).resolve().parents[3])
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}


def rest(pid: int, but: int | None = None) -> None:
    """Waits until no thread of the process runs, except `but`: those of OpenMP spin on when their work is done."""
    deadline, looks = time.monotonic() + _REST_LIMIT, 0
    while looks < _REST_LOOKS and time.monotonic() < deadline:
        looks = 0 if _runs(pid, but) else looks + 1
        time.sleep(_REST_POLL)


def _runs(pid: int, but: int | None = None) -> bool:
    """Whether a thread of the process is on a core or waits for one. False where /proc does not tell."""
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            state = file.read_text().rpartition(")")[2].split()[0]
        except OSError:  # the thread is gone
            continue
        if state == "R" and file.parent.name != str(but):
            return True
    return False

"""The process in which candidates are tried: whatever they do to it, the user's process only reads about it.

It imports torch once and computes nothing itself. A fork of it tries one candidate after the other, then lets the
products race, and says line by line what it begins and what came of it. If the fork dies, what it had begun is to
blame, and the next fork goes on without that. An alarm ends the fork when a candidate does not come back. Where forks
are not to be trusted, macOS among others, it does all that itself, and parent.py starts it again.

Lines of JSON on the standard output, each flushed at once:

    {"try": name}   {"verdict": [name, text]}   {"race": [precision, backend]}
    {"rate": [shape, precision, backend, GFLOP/s]}   {"hopeless": [precision, backend]}   {"spread": [shape, share]}
    {"skipped": shape}   {"done": true}

Started by parent.py with its task on the standard input:

    {"candidates": module, "tries": [names], "racers": [[precision, backend], ...], "shapes": [names], "threads": n,
     "limit": seconds, "forks": bool}
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from . import race, verdicts

RECURSION_MARK = "FULLSTRIDE_IN_TRIAL"  # in the environment of this process: it must not start one like itself
_PR_SET_PDEATHSIG = 1


class Task:
    """What is still to be done, as far as the lines tell."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.limit: float = given["limit"]
        self.tries: list[str] = list(given["tries"])
        self.racers: list[tuple[str, str]] = [(precision, backend) for precision, backend in given["racers"]]
        self.shapes: list[str] = list(given["shapes"])
        self.rates: dict[tuple[str, str], float] = {}  # of the shape before
        self.current: str | tuple[str, str] | None = None

    def note(self, line: dict[str, Any]) -> None:
        [(what, value)] = line.items()
        if what == "try":
            self.current = value
        elif what == "race":
            self.current = (value[0], value[1])
        elif what == "verdict":
            self.current = None
            name, verdict = value
            if name in self.tries:
                self.tries.remove(name)
            if verdict != verdicts.FINE:
                self.racers = [racer for racer in self.racers if verdicts.product_name(*racer) != name]
        elif what == "rate":
            self.rates[value[1], value[2]] = value[3]
        elif what == "hopeless":
            self.racers.remove((value[0], value[1]))
        elif what in ("spread", "skipped"):
            self.current = None
            self.shapes.remove(value[0] if what == "spread" else value)

    def blame(self, code: int) -> dict[str, Any] | None:
        """The verdict on what was going on when the process ended with this code, a signal if negative; as a line."""
        if self.current is None:
            return None
        name = self.current if isinstance(self.current, str) else verdicts.product_name(*self.current)
        return {"verdict": [name, verdicts.of_signal(-code, self.limit) if code < 0 else verdicts.of_exit(code)]}

    @property
    def is_done(self) -> bool:
        return not self.tries and not (self.shapes and self.racers)


def main() -> int:
    given = json.loads(sys.stdin.readline())
    _guard()
    # What libraries print, oneDNN's verbose lines say, is not to be taken for an answer.
    out = os.dup(1)
    os.dup2(2, 1)
    import torch

    candidates = importlib.import_module(given["candidates"])
    torch.set_num_threads(given["threads"])
    task = Task(given)
    while not task.is_done:
        if not given["forks"]:
            work(task, candidates, lambda line: _say(out, line))
        elif not _one_fork(task, candidates, out):
            return 1
    _say(out, {"done": True})
    return 0


def _one_fork(task: Task, candidates: Any, out: int) -> bool:
    """Goes on with the task until it is done or a candidate dies. False if it died of nothing that was tried."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's threads, which wait for work that never comes, are no trouble
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            _guard()
            work(task, candidates, lambda line: _say(writing, line))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as lines:
        for text in lines:
            with contextlib.suppress(ValueError):  # half a line: it died while it wrote
                line = json.loads(text)
                task.note(line)
                _say(out, line)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return True
    verdict = task.blame(code)
    if verdict is None:
        return False
    task.note(verdict)
    _say(out, verdict)
    return True


def work(task: Task, candidates: Any, say: Callable[[dict[str, Any]], None]) -> None:
    """All that the task still asks for, in this process."""
    from .candidates import check_large

    def begin(line: dict[str, Any]) -> None:
        say(line)
        signal.setitimer(signal.ITIMER_REAL, task.limit)

    def tell(line: dict[str, Any]) -> None:
        say(line)
        task.note(line)

    for name in list(task.tries):
        begin({"try": name})
        try:
            verdict = verdicts.of_error(*candidates.CHECKS[name]())
        except Exception as error:
            verdict = verdicts.of_exception(error)
        tell({"verdict": [name, verdict]})
    deadline = time.monotonic() + race.MOST_SECONDS
    for shape in list(task.shapes):
        if time.monotonic() > deadline:
            tell({"skipped": shape})
            continue
        racers = {racer: candidates.RACERS[racer] for racer in task.racers}
        sizes = race.cut_down(race.SHAPES[shape], min((task.rates[r] for r in racers if r in task.rates), default=None))
        outcome = race.race(racers, sizes, lambda racer: begin({"race": racer}), check_large)
        for racer, verdict in outcome.verdicts.items():
            tell({"verdict": [verdicts.product_name(*racer), verdict]})
        for racer, rate in outcome.rates.items():
            tell({"rate": [shape, *racer, rate]})
        for racer in outcome.hopeless:
            tell({"hopeless": racer})
        tell({"spread": [shape, outcome.spread]})


def _say(out: int, line: dict[str, Any]) -> None:
    os.write(out, json.dumps(line).encode() + b"\n")


def _guard() -> None:
    """Signals as the system has them, no core files, and an end together with the process that started this one."""
    for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGILL, signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended just before
            os._exit(1)

"""Starts the process of child.py and reads what it says. Nothing is computed here, and nothing is raised.

The child is this very Python with this very module path, so that it finds the same torch and the same kernels, from
notebooks, under -I and -S, and where the working directory is gone. It is a session of its own: Ctrl-C reaches this
process alone, which ends it. Should this process be killed instead, the system ends the child (Linux), or its next line
meets a closed pipe.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import child, race

_CANDIDATES = "fullstride.backends.trials.candidates"
_LIMIT = 20.0  # seconds of one candidate's call
_SILENCE = 60.0  # seconds without a line: importing torch from a cold disk takes half of that
_STARTS = 2
_FORKS = sys.platform == "linux"  # after a fork Apple's libraries may die of that alone
_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.stdin.readline())
from fullstride.backends.trials.child import main
sys.exit(main())
"""
Rates = dict[str, dict[str, dict[str, float]]]
"""GFLOP/s by precision, shape and backend. What was not raced at a shape, being hopeless or unusable, is left out."""


@dataclass
class Report:
    verdicts: dict[str, str] = field(default_factory=dict)
    rates: Rates = field(default_factory=dict)
    spread: float = 0.0  # the largest of the shapes
    skipped: list[str] = field(default_factory=list)  # shapes there was no time for
    trouble: str = ""  # why not all of it was tried


class _Ended(Exception):
    """The child process did, with a code that is not 0."""

    def __init__(self, code: int, errors: bytes) -> None:
        self.code = code
        how = f"ended with exit code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was ended by {signal.Signals(-code).name}"
        lines = errors.decode(errors="replace").strip().splitlines() if code > 0 else []
        super().__init__(f"the child process {how}" + (f": {lines[-1].strip()}" if lines else ""))


def run(
    tries: Sequence[str], racers: Sequence[tuple[str, str]], threads: int, environment: dict[str, str] | None = None,
    candidates: str = _CANDIDATES, limit: float = _LIMIT, silence: float = _SILENCE, forks: bool = _FORKS,
) -> Report:  # fmt: skip
    """Tries the candidates of these names, then races those that are fine. environment: beside that of this process.

    candidates: the module that holds them; limit: of a call; silence: after which the child is given up; forks: whether
    the child may fork, instead of being started anew after each death.
    """
    report = Report()
    if child.RECURSION_MARK in os.environ:
        report.trouble = "this process is itself one in which products are tried"
        return report
    shapes = list(race.SHAPES) if racers else []
    given: dict[str, Any] = {"tries": list(tries), "racers": list(racers), "shapes": shapes, "limit": limit}
    task, starts = child.Task(given), 0
    while starts < _STARTS and not task.is_done:
        starts += 1
        rest = {"tries": task.tries, "racers": task.racers, "shapes": task.shapes}
        given |= rest | {"candidates": candidates, "threads": threads, "forks": forks}
        heard = False
        report.trouble = "the child process ended early"  # where nobody waits for children, exit codes are lost
        try:
            for line in _lines(given, environment or {}, silence):
                heard = True
                if "done" in line:
                    report.trouble = ""
                    return report
                task.note(line)
                _note(report, line)
        except _Ended as error:
            verdict = None if forks else task.blame(error.code)
            if verdict is not None:
                task.note(verdict)
                _note(report, verdict)
                starts = 0  # it is the candidate's fault, of which there are not so many
            report.trouble = str(error)
        except (OSError, ValueError) as error:
            report.trouble = str(error)
        if not heard:
            break
    if task.is_done:
        report.trouble = ""
    return report


def _note(report: Report, line: dict[str, Any]) -> None:
    [(what, value)] = line.items()
    if what == "verdict":
        report.verdicts[value[0]] = value[1]
    elif what == "rate":
        shape, precision, backend, rate = value
        report.rates.setdefault(precision, {}).setdefault(shape, {})[backend] = rate
    elif what == "spread":
        report.spread = max(report.spread, value[1])
    elif what == "skipped":
        report.skipped.append(value)


def _lines(task: dict[str, Any], environment: dict[str, str], silence: float) -> Iterator[dict[str, Any]]:
    """What a child says, until it ends. OSError if it cannot be started or falls silent, _Ended if it ends badly."""
    process = subprocess.Popen(
        _command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        env=dict(os.environ) | environment | {child.RECURSION_MARK: "1"}, cwd=_folder(), start_new_session=True,
    )  # fmt: skip
    errors = b""
    try:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(f"{json.dumps(_module_path())}\n{json.dumps(task)}\n".encode())
        with selectors.DefaultSelector() as selector:
            for pipe in (process.stdout, process.stderr):
                selector.register(pipe, selectors.EVENT_READ)
            received, deadline = b"", time.monotonic() + silence
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise OSError(f"the child process said nothing for {silence:g} s")
                for key, _ in ready:
                    block = os.read(key.fd, 1 << 16)
                    if not block:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        errors = (errors + block)[-4096:]
                    else:
                        deadline = time.monotonic() + silence
                        *complete, received = (received + block).split(b"\n")
                        for text in complete:
                            yield json.loads(text)
        code = process.wait()
        if code != 0:
            raise _Ended(code, errors)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With the fork that it may have: both are in a session that was made for them."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _command() -> list[str]:
    """This Python, with the options it was itself started with (-I, -S, -X ...)."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise OSError("there is no Python to start: this one is part of another program")
    options: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    return [sys.executable, *options, "-c", _PROGRAM]


def _folder() -> str | None:
    """Where the child works: here, unless that folder is gone, in which torch could not be imported."""
    try:
        os.getcwd()
    except OSError:
        return os.sep
    return None


def _module_path() -> list[str]:
    """Where this process finds its modules, and this package however it was found."""
    package = str(Path(__file__).resolve().parents[3])
    return [path for path in sys.path if isinstance(path, str)] + [package]

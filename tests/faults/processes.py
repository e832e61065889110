"""`fullstride` commands and trainings in processes of their own, to be stopped, killed and started again.

They are forked from one that has loaded torch and used nothing of it, so that a start takes milliseconds, not seconds.
test_command.py shows that `python -m fullstride` does the same.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import psutil

from fullstride.recipes import config_files
from fullstride.recipes.config import Config

from ..patience import PATIENCE
from ..train import children

# After children's own list, which it replaces: one process serves the tests of both folders.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["fullstride.cli", "fullstride.train.trainer", "fullstride.recipes.mlp_task", "pytest"])


@dataclass(frozen=True)
class Pause:
    """Before the number-th micro-batch (from 0), batch of an evaluation, or showing, that the process computes."""

    where: Literal["loss", "score", "show"]
    number: int
    recipe: Literal["mlp", "fastspeech2", "clip"] = "mlp"


@dataclass(frozen=True)
class Poison:
    """NaN instead of every micro-batch of the process from the number-th on."""

    number: int


class Command:
    """`fullstride ARGUMENTS`, running. What it prints and logs goes to the file `output`."""

    def __init__(self, output: Path, arguments: tuple[str | Path, ...], change: Pause | Poison | None = None) -> None:
        self._output = output
        self._pipe, theirs = _context.Pipe()
        words = [str(word) for word in arguments]
        self.process = children.start(_do, words, output, theirs, change)
        theirs.close()
        self.pid: int = self.process.pid

    def until_paused(self) -> "Command":
        assert self._pipe.poll(PATIENCE), "it did not come to its pause"
        try:
            self._pipe.recv()
        except EOFError:
            raise AssertionError(f"it ended before its pause: {self.wait()}") from None
        return self

    @property
    def is_alive(self) -> bool:
        return self.process.exitcode is None

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def go_on(self) -> tuple[int, str]:
        """From the pause to the end."""
        self._pipe.send("go on")
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """(exit code, or the signal's number below 0; the text it wrote)"""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, "it did not end"
        return self.process.exitcode, self._output.read_text()

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children()

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self._pipe.close()


def _do(arguments: list[str], output: Path, pipe: Any, change: Pause | Poison | None) -> None:
    with open(output, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # a report takes longer than all the rest
    if isinstance(change, Pause):
        _pause(change, pipe)
    elif isinstance(change, Poison):
        _poison(change)
    from fullstride import cli

    sys.exit(cli.main(arguments))


def _pause(pause: Pause, pipe: Any) -> None:
    tasks = {"mlp": ("mlp_task", "MlpTask"), "fastspeech2": ("fastspeech2.task", "FastSpeech2Task")}
    place, kind = (tasks | {"clip": ("clip.task", "ClipTask")})[pause.recipe]
    module = import_module(f"fullstride.recipes.{place}")
    original, calls = getattr(getattr(module, kind), pause.where), itertools.count()

    def paused(task: Any, model: Any, *inputs: Any) -> Any:
        counted = pause.where != "show" and _is_counted(inputs[0])
        if not counted and next(calls) == pause.number:
            pipe.send("paused")
            pipe.recv()
        return original(task, model, *inputs)

    setattr(getattr(module, kind), pause.where, paused)


def _poison(poison: Poison) -> None:
    from fullstride.recipes.mlp_task import MlpTask

    original, calls = MlpTask.loss, itertools.count()

    def poisoned(task: Any, model: Any, batch: Any) -> Any:
        inputs, labels = batch
        spoilt = not _is_counted(batch) and next(calls) >= poison.number
        return original(task, model, (inputs * float("nan") if spoilt else inputs, labels))

    setattr(MlpTask, "loss", poisoned)  # noqa: B010, mypy lets nobody assign to a method


def _is_counted(batch: Any) -> bool:
    """Whether it is the batch without values that FLOPs are counted with, before the first step."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(batch[0], FakeTensor)


class Commands:
    """Starts commands, keeps what they write in a folder, and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Command] = []

    def start(self, *arguments: str | Path, change: Pause | Poison | None = None) -> Command:
        output = self._folder / f"output-{len(self._started)}"
        self._started.append(Command(output, arguments, change))
        return self._started[-1]

    def train(self, run: Path, config: Config, change: Pause | Poison | None = None) -> Command:
        file = self._folder / f"config-{len(self._started)}.yaml"
        file.write_text(config_files.to_yaml(config))
        return self.start("train", "--config", file, "--run", run, change=change)

    def resume(self, run: Path, change: Pause | Poison | None = None) -> Command:
        return self.start("resume", run, change=change)

    def finish(self, run: Path) -> str:
        """Resumes the run, which must end well; what was written meanwhile."""
        code, text = self.resume(run).wait()
        assert code == 0, text
        return text

    def close(self) -> None:
        for command in self._started:
            command.close()


def until(condition: Any, what: str) -> None:
    """Polls for it."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)


def is_gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def last_line(text: str) -> str:
    return text.splitlines()[-1]


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """As a machine that swaps stops them: alive, and doing nothing."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def kill_at_line(line: int) -> None:
    """Kills this process before the line-th line of the package that it executes from here on."""
    left = line

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if "fullstride" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)

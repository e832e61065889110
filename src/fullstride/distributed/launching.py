"""Processes that train together on this machine, started and watched by torch's elastic agent.

Nothing listens on the network: the agent and the processes meet in files, and gloo uses the loopback interface.
When a process dies, the agent ends the others and, if it may, starts all anew; they go on from the last checkpoint.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .launched import STORE_FILE

_PATIENCE = 600  # seconds for processes to save and end, when they are told to; after the death of one torch leaves 30
_POLL = 0.2  # seconds between two looks at them, and of theirs at what started them
_TOLD_TO_END = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes of those that the agent ends, after another's end
_LAUNCHER = "FULLSTRIDE_LAUNCHER"  # names the process that started this one


def launch(command: Sequence[str], num: int, restarts: int = 0, lost: int | None = None) -> tuple[int, str]:
    """Runs `python -m command ...` in `num` processes. (exit code, what became of them if it is not 0).

    lost: the exit code of a process that ends because another one has."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="fullstride-") as folder, _environment(Path(folder)), _quiet():
        known = {field.name for field in fields(LaunchConfig)}
        more: dict[str, Any] = {"shutdown_timeout": _PATIENCE} if "shutdown_timeout" in known else {}
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=num, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
            rdzv_endpoint=str(Path(folder) / "agent"), rdzv_configs={"store_type": "file"}, max_restarts=restarts,
            monitor_interval=_POLL, start_method="spawn", local_addr="localhost", **more,
        )  # fmt: skip
        try:
            elastic_launch(config, sys.executable)("-m", *command)
        except ChildFailedError as error:
            return of_failures({rank: failure.exitcode for rank, failure in error.failures.items()}, lost)
        except SignalException as error:
            return 128 + int(error.sigval), ""
    return 0, ""


def end_with_launcher() -> None:
    """In a process that launch() started: stops it, after the step under way, if launch() itself was killed."""
    launcher = os.environ.get(_LAUNCHER)
    if launcher is not None:
        threading.Thread(target=_watch, args=(int(launcher),), daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL)
    os.kill(os.getpid(), signal.SIGTERM)


def of_failures(codes: dict[int, int], lost: int | None = None) -> tuple[int, str]:
    """What launch() returns for exit codes by rank, in the order in which the agent saw them. One that lost another, or
    was ended by the agent, is not why: and several may have ended between two looks."""
    rank = min(codes, key=lambda rank: (codes[rank] in (lost, *_TOLD_TO_END), codes[rank] > 0))
    return _exit_code(codes[rank]), _death(rank, codes[rank])


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _death(rank: int, code: int) -> str:
    """Of a process that could not say it itself."""
    return f"rank {rank} was killed by {signal.Signals(-code).name}" if code < 0 else ""


@contextlib.contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Where they meet; and one OpenMP thread, which each corrects by itself: else torch warns that it sets that."""
    given = {
        STORE_FILE: str(folder / "processes"),
        _LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # or the agent listens on all interfaces, for nobody
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What went wrong is told by the process itself, in a line; torch's agent would add a page."""
    logger = logging.getLogger("torch.distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed."):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)

"""Real processes that train together, on this machine: what a function returns in each of them."""

import contextlib
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "fullstride", "fullstride.train.trainer", "tests.distributed.processes"])


def together(num: int, body: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None) -> list[Any]:
    """body(world, *arguments) in `num` processes: what it returns, by rank. An exception in one of them is raised here,
    as an AssertionError with its text. body is a function of a module; numbers, text and numpy arrays come back whole,
    and tensors as well if they are detached."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_context.Pipe(duplex=False) for _ in range(num)]
        processes = [
            _context.Process(target=_child, args=(rank, num, folder, pipes[rank][1], body, arguments, env or {}))
            for rank in range(num)
        ]
        for process in processes:
            process.start()
        try:
            results = [_receive(rank, pipe) for rank, (pipe, _) in enumerate(pipes)]
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
    failed = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(results) if not ok]
    assert not failed, "\n".join(failed)
    return [value for _, value in results]


def mean(world: Any, value: float) -> float:
    """Of what each process has."""
    result: float = world.sum([value])[0] / world.size
    return result


def _receive(rank: int, pipe: Any) -> tuple[bool, Any]:
    with contextlib.suppress(EOFError):
        if pipe.poll(PATIENCE):
            ok, value = pipe.recv()
            return ok, value
        return False, f"no answer within {PATIENCE} s"
    return False, "died without a word"


def _child(
    rank: int, num: int, folder: str, pipe: Any, body: Callable[..., Any], arguments: Any, env: dict[str, str]
) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(num), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(num),
        FULLSTRIDE_STORE=str(Path(folder) / "store"), FULLSTRIDE_QUIET="1", **env,
    )  # fmt: skip
    import torch

    from fullstride.distributed.world import joined

    torch.set_num_threads(1)
    try:
        with joined(timeout=PATIENCE) as world:
            answer = (True, body(world, *arguments))
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send_bytes(pickle.dumps(answer))  # send() would share the memory of tensors, which ends with this process
    pipe.close()

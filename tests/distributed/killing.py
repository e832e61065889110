"""`fullstride` as one of several processes, which kills itself at a certain place in its first life.

    python -m tests.distributed.killing PLACE RANK STEP train ...
"""

import os
import signal
import sys
from typing import Any


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(place: str, rank: str, step: str, *arguments: str) -> int:
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # a report takes longer than all the rest
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and os.environ["RANK"] == rank:
        _arrange(place, int(step))
    from fullstride import cli

    return cli.main(list(arguments))


def _arrange(place: str, step: int) -> None:
    from fullstride.distributed.gradients import Averaged
    from fullstride.recipes.mlp_task import MlpTask
    from fullstride.train.checkpoints.store import Store
    from fullstride.train.trainer import Trainer

    now: dict[str, Any] = {"trainer": None}

    def is_time() -> bool:
        return now["trainer"] is not None and now["trainer"].state.step == step

    started, loss, send, write = Trainer._start, MlpTask.loss, Averaged.send, Store._write

    def start(trainer: Any, stack: Any) -> None:
        now["trainer"] = trainer
        started(trainer, stack)

    def in_loss(task: Any, model: Any, batch: Any) -> Any:
        result = loss(task, model, batch)
        if is_time():
            _die() if place == "forward" else result.register_hook(lambda gradient: _die())
        return result

    def in_send(averaged: Any, bucket: Any) -> Any:
        future = send(averaged, bucket)
        if is_time():
            _die()
        return future

    def in_write(store: Any, target: Any, files: Any, *rest: Any) -> None:
        if is_time():
            first = next(iter(files))
            write(store, target, {first: files[first]}, *rest)  # half of it is there
            _die()
        write(store, target, files, *rest)

    places: dict[str, tuple[type, str, Any]] = {
        "forward": (MlpTask, "loss", in_loss),
        "backward": (MlpTask, "loss", in_loss),
        "allreduce": (Averaged, "send", in_send),
        "saving": (Store, "_write", in_write),
    }
    setattr(Trainer, "_start", start)  # noqa: B010, mypy lets nobody assign to a method
    setattr(*places[place])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

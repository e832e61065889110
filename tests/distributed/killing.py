"""`fullstride` as one of several processes, which kills itself at a certain place in its first life.

    python -m tests.distributed.killing PLACE RANK STEP train ...
"""

import os
import signal
import sys
from collections.abc import Callable
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
    from fullstride.distributed.shared_sums import SharedSums
    from fullstride.recipes.mlp_task import MlpTask
    from fullstride.train.checkpoints.store import Store
    from fullstride.train.trainer import Trainer

    now: dict[str, Any] = {"trainer": None}
    started = Trainer._start

    def start(trainer: Any, stack: Any) -> None:
        now["trainer"] = trainer
        started(trainer, stack)

    def is_time() -> bool:
        return now["trainer"] is not None and now["trainer"].state.step == step

    places: dict[str, tuple[type, str, Any]] = {
        "forward": (MlpTask, "loss", _afterwards),
        "backward": (MlpTask, "loss", _in_backward),
        "allreduce": (Averaged, "send", _afterwards),
        "sum": (SharedSums, "_wait_for_all", _afterwards),  # all have brought what is to be summed
        "saving": (Store, "_write", _in_the_middle),
    }
    owner, name, when = places[place]
    real = getattr(owner, name)

    def instead(*arguments: Any) -> Any:
        return when(real, *arguments) if is_time() else real(*arguments)

    setattr(Trainer, "_start", start)  # noqa: B010, mypy lets nobody assign to a method
    setattr(owner, name, instead)


def _afterwards(real: Callable[..., Any], *arguments: Any) -> None:
    real(*arguments)
    _die()


def _in_backward(loss: Callable[..., Any], *arguments: Any) -> Any:
    result = loss(*arguments)
    result.register_hook(lambda gradient: _die())
    return result


def _in_the_middle(write: Callable[..., Any], store: Any, target: Any, files: Any, *rest: Any) -> None:
    first = next(iter(files))
    write(store, target, {first: files[first]}, *rest)  # half of it is there
    _die()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A run as one of several processes that train together: who does what, and that all do it at the same step.

The first process writes the run folder. The others have one of their own for as long as they live, so that everything
that writes rows or logs is the same code in all. A signal to any of them counts for all, after the step under way.
"""

import contextlib
import datetime
import json
import logging
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from ..data.sharing import Share
from ..distributed import agreement, local_updates
from ..distributed.replicas import Plan, Replicas
from ..distributed.world import World, joined
from ..recipes import config_files, strict
from ..recipes.config import Config
from ..recipes.task import Task
from ..run_folder.flat import flat
from ..run_folder.folder import RunFolder
from .checkpoints import transfer
from .checkpoints.store import Snapshot
from .errors import PeerLost, ToldElsewhere
from .signals import Signals

logger = logging.getLogger(__name__)

_STOPS = (signal.SIGINT, signal.SIGTERM)
_LOST = re.compile(r"gloo|connection (was )?(closed|reset)|broken pipe|process group", re.IGNORECASE)
_WORDS = re.compile(r"(\[\S+\]:\d+)?:? ?(connection [a-z ]+ by peer|connection closed|broken pipe|timed out)", re.I)


class Together:
    """world: all processes. share: this one's part of each step."""

    def __init__(self, stack: contextlib.ExitStack, config: Config, resumes: bool) -> None:
        wish = config.distributed
        self.world: World = stack.enter_context(joined(wish.backend, wish.timeout))
        stack.enter_context(losses_named(self.world))
        self.world.timeout = datetime.timedelta(seconds=wish.timeout)  # of groups that are still to be made
        self.share = Share(self.world.size, self.world.rank, config.accumulate)
        self.stop: int | None = None  # the signal that all know of
        self.save = False
        self._config, self._may_drift = config, False
        if not self.world.is_alone:
            self._may_drift = agreement.check(self.world, agreement.facts(_without_places(config), resumes))
        self.share.check(config.micro_batch)

    @property
    def is_alone(self) -> bool:
        return self.world.is_alone

    @property
    def name(self) -> str:
        """As people are told of it; empty for the first process, which speaks for all."""
        return "" if self.world.is_first else self.world.name(self.world.rank)

    @property
    def writes(self) -> bool:
        """Whether this is the process of the run folder."""
        return self.world.is_first

    # ---- before the first step ---------------------------------------------------------------------------------------

    def take_part(self, task: Task) -> None:
        """The data is this process's share from now on."""
        if self.share.parts > 1 and not task.can_cut:
            raise ValueError(
                f"accumulate: expected a multiple of the {self.world.size} processes, as batches of a loader are not"
                f" cut; got {self._config.accumulate}"
            )
        if self._may_drift and self._config.freeze.enabled:
            raise ValueError(
                "freeze.enabled: expected CPUs of one kind, as each process decides by its own weights; got others"
                " (see above); pass --freeze.no-enabled"
            )
        if not self.is_alone:
            wish = self._config.distributed
            local_updates.num_islands(self.world, wish.local_steps, wish.islands)  # refused before there is a folder
            what = f"{task.num_train} and {task.num_valid} samples, content {task.fingerprint or 'unknown'}"
            agreement.check(self.world, {"data": what})
            task.share = self.share

    def folder(self, stack: contextlib.ExitStack, run: Path | None, resumes: bool) -> RunFolder:
        """The run folder, or one that is gone when this process ends. An error of the first process is everybody's."""
        if self.is_alone:
            return _open(run, self._config, resumes)
        folder, trouble = None, None
        if self.writes:
            try:
                folder = _open(run, self._config, resumes)
            except (ValueError, OSError) as error:
                trouble = error
        said = self.world.from_first(None if trouble is None else str(trouble))
        if trouble is not None:
            raise trouble
        if said is not None:
            raise ToldElsewhere
        if folder is None:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="fullstride-"))
            folder = RunFolder.create(Path(temporary) / "run", config_files.to_yaml(self._config))
        return folder

    def newest(self, snapshot: Snapshot | None) -> Snapshot | None:
        """The first process's checkpoint, in all."""
        return snapshot if self.is_alone else transfer.from_first(self.world, snapshot)

    def precision(self, own: str) -> str:
        """That all can train in."""
        return own if self.is_alone else agreement.precision(self.world, own)

    def replicas(self, task: Task, model: nn.Module, optimizer: Any, environment: dict[str, Any]) -> Replicas:
        """environment: that of the run, which says since its beginning what gradients are sent in."""
        wish, share = self._config.distributed, self.share
        plan = Plan(
            share.micros, share.parts, wish.gradients, wish.local_steps, wish.islands, wish.outer_rate,
            wish.outer_momentum, task.uses_all_parameters, environment.get("gradients"),
            self._may_drift and not wish.shard_optimizer,
        )  # fmt: skip
        replicas = Replicas(self.world, plan, model, optimizer, environment["precision"])
        if replicas.averaged is not None:
            environment["gradients"] = replicas.averaged.wire
        if replicas.repair():
            logger.warning("processes began with other weights: all have those of %s now", self.world.name(0))
        if replicas.peers is not None:
            task.join(model, replicas.peers)
        return replicas

    # ---- in a step ---------------------------------------------------------------------------------------------------

    def agree(
        self, signals: Signals, loss: float, samples: int, wish: str, island: dist.ProcessGroup | None
    ) -> tuple[float, int, str]:
        """After the last micro-batch: the mean loss and the samples of all; and why a hook, here or elsewhere, wishes
        to stop, if one does. All hear of signals. An island that goes on by itself asks its own processes alone."""
        if self.is_alone:
            return loss, samples, wish
        if island is not None:
            total, count = self.world.sum([loss, samples], island)
            return total / island.size(), round(count * self.world.size / island.size()), ""
        saves, signals.save = signals.save, False  # one that comes during the sum counts for the next step
        flags = [float(signals.stop == number) for number in _STOPS]
        flags += [float(saves), float(bool(wish))]
        total, count, *stops, save, ends = self.world.sum([loss, samples, *flags])
        self.stop = next((number for number, flag in zip(_STOPS, stops, strict=True) if flag), None)
        self.save = bool(save)
        return total / self.world.size, round(count), wish or "another process wished to" * bool(ends)

    def poll(self, signals: Signals) -> tuple[int | None, bool]:
        """(signal to stop, whether to save now): what all know of, or what this process was told if it is alone."""
        if self.is_alone:
            save, signals.save = signals.save, False
            return signals.stop, save
        save, self.save = self.save, False
        return self.stop, save


@contextlib.contextmanager
def losses_named(world: World) -> Iterator[None]:
    """Around what talks to other processes: the end of one of them is told as such."""
    try:
        yield
    except RuntimeError as error:
        if world.is_alone or not is_loss(error):
            raise
        raise PeerLost(f"{world.name(world.rank)} lost another process: {_why(error)}") from None


def is_loss(error: Exception) -> bool:
    """Whether it says no more than that another process has gone, which alone could say why."""
    if isinstance(error, PeerLost | ToldElsewhere):
        return True
    return isinstance(error, RuntimeError | ValueError) and _LOST.search(str(error)) is not None


def _why(error: Exception) -> str:
    """gloo's words, without the place in its source."""
    text = " ".join(str(error).split())
    found = _WORDS.search(text)
    return found[0].strip(" :") if found else text[:200]


def _without_places(config: Config) -> str:
    """What must be the same everywhere: hosts may have their files in other folders."""
    fields = {name: value for name, value in flat(strict.as_mapping(config)).items() if name.split(".")[-1] != "path"}
    is_place = {name: isinstance(value, str) and value.startswith("/") for name, value in fields.items()}
    return json.dumps({name: Path(value).name if is_place[name] else value for name, value in fields.items()})


def _open(run: Path | None, config: Config, resumes: bool) -> RunFolder:
    if resumes:
        assert run is not None
        return RunFolder.open(run)
    return RunFolder.create(run, config_files.to_yaml(config), config.recipe)

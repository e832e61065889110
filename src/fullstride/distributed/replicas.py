"""One model in several processes, the same in all: what a trainer calls around its micro-batches and steps.

    with replicas.micro_batch(is_last):
        (loss(replicas.model, batch) / replicas.divisor).backward()
    optimizer.step()
    replicas.after_step(step)

A process alone has nothing to do here: `model` is the model, and the rest returns at once.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ops._leaf_gradients import watched_by
from . import batch_norm, wire
from .gradients import Averaged
from .late_sums import LateSums
from .local_updates import LocalUpdates, islands, num_islands
from .peers import Peers
from .shared_sums import SharedSums
from .world import World

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """How a run is shared, as its config says: see recipes.config.Distributed."""

    micros: int = 1  # that each process computes in a step
    parts: int = 1  # that each micro-batch is cut into
    gradients: str = "auto"
    local_steps: int = 0
    num_islands: int | None = None
    outer_rate: float = 1.0
    outer_momentum: float = 0.5
    uses_all: bool = True  # the model is called itself, and parameters have a gradient in every micro-batch
    wire: str | None = None  # what gradients were sent in before the run was stopped
    may_drift: bool = False  # processes round otherwise; shared states send weights in each step, so these do not drift


class Replicas:
    """peers: those with the other parts of this process's micro-batches, None if these are whole."""

    def __init__(self, world: World, plan: Plan, model: nn.Module, optimizer: Any, precision: str) -> None:
        self.world, self._module, self._optimizer = world, model, optimizer
        self.peers: Peers | None = None
        self.local: LocalUpdates | None = None
        self.averaged: Averaged | LateSums | None = None
        self.island: dist.ProcessGroup | None = None
        self.divisor, self.how, self._may_drift = plan.micros, "one process", plan.may_drift
        self._began = (0, 0.0, 0.0)
        self._met = -1  # the step of the last outer step
        if world.is_alone:
            return
        count = num_islands(world, plan.local_steps, plan.num_islands)
        group, outer = (dist.group.WORLD, None) if count == 1 else islands(world, count)
        assert group is not None
        if plan.parts > 1 and group.size() % plan.parts == 0:  # else an island has no whole micro-batch
            self.peers = Peers.of(world, plan.parts)
        if self.peers is not None:
            batch_norm.share_statistics(model, self.peers)
        self._statistics = batch_norm.running_statistics(model)
        self.divisor *= group.size()
        how = self._sum_gradients(plan, precision, group)
        local = f"; {count} islands, whose weights are averaged every {plan.local_steps} steps" if count > 1 else ""
        self.how = f"{world.size} processes, {self._share_of(plan)} each a step; {how}{local}"
        if outer is not None:
            self.local = LocalUpdates(model, group, outer, plan.local_steps, plan.outer_rate, plan.outer_momentum)
            self.island = group

    def _sum_gradients(self, plan: Plan, precision: str, group: dist.ProcessGroup) -> str:
        """Chooses what sums them within a group, if there is anything to sum, and says it."""
        if group.size() == 1:
            return "no gradients are sent"
        shared = SharedSums.between(self.world, group)
        chosen, why = wire.choose(plan.gradients, precision, group, plan.wire, shared)
        if plan.uses_all:
            self.averaged = Averaged(self._module, group, chosen, shared)
        else:
            stepped = [p for own in self._optimizer.param_groups for p in own["params"]]
            self.averaged = LateSums(self._module, stepped, group, chosen, shared)
        way = "sent" if shared is None else "summed in shared memory"
        return f"gradients are {way} in {chosen} ({why})"

    def _share_of(self, plan: Plan) -> str:
        if plan.parts == 1:
            return f"{plan.micros} micro-batches" if plan.micros > 1 else "one micro-batch"
        whole = "" if self.peers is not None else " (islands take theirs for a whole one)"
        return f"{plan.micros} x 1/{plan.parts} of a micro-batch{whole}"

    def go_on(self, step: int, outer: dict[str, Tensor]) -> None:
        """With a run that was saved at this step, when islands had met; outer: what they had in common."""
        self._met = step
        if self.local is not None:
            self.local.load(outer)

    @property
    def model(self) -> nn.Module:
        return self._module if self.averaged is None else self.averaged.model

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Around forward and backward of one."""
        if self.averaged is None:
            with watched_by("nobody"):  # though there may be a process group
                yield
            return
        with self.averaged.micro_batch(is_last):
            yield

    def before_saved_step(self) -> None:
        """The step that begins will be saved: nothing may be left that only this process knows."""
        if self.averaged is not None:
            self.averaged.flush()

    def meets(self, step: int, shows: bool) -> bool:
        """Whether all processes exchange something in this step. Islands do when weights are averaged."""
        return self.local is None or shows or self.local.is_due(step)

    def after_step(self, step: int, shows: bool, skipped: bool = False) -> None:
        """shows: the weights are looked at next, by an evaluation or a checkpoint; islands then meet before it."""
        if self.world.is_alone:
            return
        if skipped and self.averaged is not None:
            self.averaged.forget()
        if self.local is not None and self.meets(step, shows) and step != self._met:
            self.local.average()
            self._met = step
        if self._statistics and (self.local is None or shows):
            self.world.average(self._statistics)
        if shows:
            self.world.tensors_from_first(batch_norm.other_buffers(self._module))
        if shows and self._may_drift:
            self.repair()

    def before_weights(self) -> None:
        """Somebody wants to read whole weights. All processes must call it."""
        if self._is_sharded:
            self._optimizer.gather_lower_halves()

    @property
    def _is_sharded(self) -> bool:
        return hasattr(self._optimizer, "gather_lower_halves")  # of sharding.py, which loads much of torch

    # ---- that they stay the same -------------------------------------------------------------------------------------

    def repair(self) -> bool:
        """Whether weights differed. All then have those of the first process.

        Gradients are the same bits everywhere, but their norm is a sum that other instructions round otherwise.
        """
        if self.world.is_alone:
            return False
        own = _checksum(self._module)
        if len(set(self.world.gather(own))) == 1:
            return False
        state = self._module.state_dict()
        tensors = [x for x in state.values() if isinstance(x, Tensor)]
        self.world.tensors_from_first(tensors)
        self._module.load_state_dict(state)
        return True

    # ---- what it costs -----------------------------------------------------------------------------------------------

    def take_costs(self) -> dict[str, float]:
        """Of this process since it was last asked: bytes sent, and seconds in which it did nothing but exchange them or
        wait for others."""
        sent = self.world.sent + sum(part.sent for part in (self.averaged, self.local, self.peers) if part is not None)
        waited = self.world.waited + sum(part.waited for part in (self.local, self.peers) if part is not None)
        if self.averaged is not None:
            waited += self.averaged.exposed
        if self._is_sharded:
            sent, waited = sent + self._optimizer.sent, waited + self._optimizer.waited
        before, self._began = self._began, (sent, waited, time.perf_counter())
        return {"sent_mb": (sent - before[0]) / 1e6, "wait": waited - before[1], "wall": self._began[2] - before[2]}


def _checksum(model: nn.Module) -> str:
    """Of the bits of all weights, as forward uses them."""
    total = 0
    for x in model.state_dict().values():
        if isinstance(x, Tensor) and x.numel():
            flat = x.detach().contiguous().view(-1).view(torch.uint8)
            even = flat[: len(flat) // 4 * 4].view(torch.int32)
            total = (total * 1000003 + int(even.sum(dtype=torch.int64)) + int(flat[len(even) * 4 :].sum())) % (1 << 61)
    return f"{total:x}"

"""Steps that each island of processes takes by itself, then one step of all with the mean of how far they came.

    inner   H steps of the run's own optimizer, on an island's share of the data; nothing is sent between islands
    outer   delta = mean over islands of (weights before - weights now); velocity = momentum velocity + delta;
            weights = weights before - lr (delta + momentum velocity)

One message of the size of the model in H steps, instead of H: each process of an island sends its share to those with
its place in other islands, and hands the mean to its own island. Douillard et al., DiLoCo,
https://arxiv.org/abs/2311.08105. Their lr 0.7 and momentum 0.9 lost to 1 and 0.5 here, with 8 to 200 meetings
(docs/experiments.md). The outer step is torch's SGD with Nesterov momentum, in fp32, on exact weights.
States of the inner optimizer stay each island's own.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .messages import bytes_of_sum, together
from .world import World


class LocalUpdates:
    """sent: bytes that this process sent. waited: seconds in outer steps."""

    def __init__(
        self, model: nn.Module, island: dist.ProcessGroup, across: dist.ProcessGroup, every: int, lr: float,
        momentum: float,
    ) -> None:  # fmt: skip
        self.every, self._island, self._across = every, island, across
        self.sent, self.waited = 0, 0.0
        self._model = model
        self._names = [name for name, _ in model.named_parameters()]
        tied: dict[Tensor, list[str]] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            tied.setdefault(p, []).append(name)
        self._places = list(tied.values())  # names of each, of which a state_dict has all
        weights = model.state_dict()
        self._outer = [weights[name].detach().float().clone() for name in self._names]
        self._sgd = torch.optim.SGD(self._outer, lr=lr, momentum=momentum, nesterov=momentum > 0)

    def is_due(self, step: int) -> bool:
        return step % self.every == 0

    @torch.no_grad()
    def average(self) -> None:
        """The outer step. All processes must call it."""
        began = time.perf_counter()
        state = self._model.state_dict()
        for outer, name in zip(self._outer, self._names, strict=True):
            outer.grad = outer - state[name]
        self._sum([outer.grad for outer in self._outer if outer.grad is not None])
        self._sgd.step()
        self._sgd.zero_grad()
        self.put_into_model()
        self.waited += time.perf_counter() - began

    def put_into_model(self) -> None:
        state = self._model.state_dict()
        for names, outer in zip(self._places, self._outer, strict=True):
            state.update(dict.fromkeys(names, outer))
        self._model.load_state_dict(state)

    def _sum(self, tensors: Sequence[Tensor]) -> None:
        """The mean over islands, several tensors in a message."""
        across, within = self._across.size(), self._island.size()
        for some in together(tensors):
            flat = torch.cat([tensor.flatten() for tensor in some])
            shares = F.pad(flat, (0, -len(flat) % within)).view(within, -1)
            own = shares[self._island.rank()].clone()
            dist.all_reduce(own, group=self._across)
            dist.all_gather(list(shares), own, group=self._island)
            self.sent += bytes_of_sum(own, across) + (within - 1) * own.numel() * own.element_size()
            mean = shares.flatten()[: len(flat)] / across
            for tensor, part in zip(some, mean.split([t.numel() for t in some]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    # ---- saving ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The velocity; the weights are the model's, which is saved after an average only."""
        velocity = (self._sgd.state[outer].get("momentum_buffer") for outer in self._outer)
        return {name: x for name, x in zip(self._names, velocity, strict=True) if x is not None}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Of a run that goes on; the model has its weights already."""
        state = self._model.state_dict()
        for outer, name in zip(self._outer, self._names, strict=True):
            outer.copy_(state[name])
            if name in tensors:
                self._sgd.state[outer]["momentum_buffer"] = tensors[name].clone()


def islands(world: World, count: int) -> tuple[Any, Any]:
    """(group of this process's island, group of those with its place in other islands). All processes must call it."""
    size = world.size // count
    inner, outer = (
        [dist.new_group(list(ranks), timeout=world.timeout) for ranks in groups]
        for groups in (
            [range(first, first + size) for first in range(0, world.size, size)],
            [range(place, world.size, size) for place in range(size)],
        )
    )
    return inner[world.rank // size], outer[world.rank % size]


def num_islands(world: World, local_steps: int, wish: int | None) -> int:
    """1 where gradients are averaged in every step. ValueError if the processes cannot be divided so. All processes
    must call it."""
    if not local_steps:
        return 1
    each = world.gather(world.local_size)
    if wish is None and len(set(each)) > 1:
        raise ValueError(
            f"distributed.islands: expected a number, as machines have {min(each)} to {max(each)} processes; give"
            " their number, or all as many processes"
        )
    nodes = world.size // each[0]
    count = wish or (nodes if nodes > 1 else world.size)
    if world.size % count:
        raise ValueError(f"distributed.islands: expected a divisor of the {world.size} processes, got {count}")
    return count

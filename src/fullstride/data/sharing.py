"""How the processes of a run share its micro-batches, so that any number of them trains the same.

A step has `accumulate` micro-batches, whoever computes them. Among w processes each is cut into `parts`, as few as make
their number a multiple of w, and these are dealt out in turn:

    parts             = w / gcd(accumulate, w)
    part g            of the run, counted over all micro-batches, is part g % parts of micro-batch g // parts
    process r         computes, as its own number k, part k w + r; accumulate * parts / w of them a step

So with as many micro-batches as processes, or a multiple, all stay whole, and dropout and statistics of a batch are
those of one process. Where they are cut, process r always has part r % parts, and those with the rest of the same
micro-batch are the `parts` processes around it. What was trained is one number, the step, whatever w was.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .dataset import Dataset
from .order import BatchOrder, seed_of


@dataclass(frozen=True)
class Share:
    """Of process `rank` among `world`."""

    world: int = 1
    rank: int = 0
    accumulate: int = 1
    """Micro-batches in a step, of all processes together."""

    @property
    def parts(self) -> int:
        """That each micro-batch is cut into."""
        return self.world // math.gcd(self.accumulate, self.world)

    @property
    def part(self) -> int:
        return self.rank % self.parts

    @property
    def micros(self) -> int:
        """Micro-batches, or parts of them, that this process computes in a step."""
        return self.accumulate * self.parts // self.world

    def number(self, position: int) -> int:
        """The micro-batch of the run that number `position` of this process is, or is a part of."""
        return (position * self.world + self.rank) // self.parts

    def seed(self, seed: int, position: int) -> int:
        """Of what is drawn for it, dropout say: that of one process, if the micro-batch is whole."""
        of_whole = seed_of(seed, self.number(position))
        return of_whole if self.parts == 1 else seed_of(of_whole, self.part)

    def cut(self, length: int) -> slice:
        """This process's part of so many. What is shorter than the parts are many is everybody's, whole: then all have
        the same weight in a mean over the parts, and none has nothing."""
        if length < self.parts:
            return slice(0, length)
        return slice(length * self.part // self.parts, length * (self.part + 1) // self.parts)

    def check(self, micro_batch: int) -> None:
        """ValueError where the parts would not be alike."""
        if micro_batch % self.parts == 0:
            return
        a_step = micro_batch * self.accumulate
        fits = [n for n in range(2, a_step + 1) if micro_batch % Share(n, 0, self.accumulate).parts == 0]
        near = sorted(sorted(fits, key=lambda n: abs(n - self.world))[:3])
        raise ValueError(
            f"processes: expected a number that can share {self.accumulate} x {micro_batch} samples a step alike,"
            f" such as {', '.join(map(str, near)) or 'one'}; got {self.world}; change it, micro_batch or accumulate"
        )


ALONE = Share()


@dataclass(frozen=True)
class SharedOrder:
    """The micro-batches of `order` that a process takes part in, whole: which of their samples are its own is said by
    SharedDataset."""

    order: BatchOrder
    share: Share

    def micro_batch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.order.micro_batch(self.share.number(number))


@dataclass
class SharedDataset:
    """The part of each batch that is this process's. A data set whose batches are more than their samples says itself
    what a part of one is: batch_part(indices, epochs, share)."""

    dataset: Dataset
    share: Share

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Tensor, ...]:
        if hasattr(self.dataset, "batch_part"):
            result: tuple[Tensor, ...] = self.dataset.batch_part(indices, epochs, self.share)
            return result
        own = self.share.cut(len(indices))
        return self.dataset.batch(indices[own], epochs[own])

"""The order of the samples: one endless stream, cut into micro-batches.

    position s      is place s % n of epoch s // n, n samples an epoch, in an order that is a function of (seed, epoch)
    micro-batch k   is the positions k B ... k B + B - 1

Micro-batches are always full and may hold the end of an epoch and the beginning of the next. Every sample comes exactly
once an epoch, whatever B is, and the whole state of the data is one number: that of the next micro-batch. How several
processes share micro-batches stands in sharing.py.
"""

import random
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class BatchOrder(Protocol):
    """Which samples are in which micro-batch: a pure function of its number."""

    def micro_batch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(indices, epochs)."""
        ...


@dataclass(frozen=True)
class Order:
    num_samples: int
    batch: int
    seed: int = 0
    shuffle: bool = True
    _epochs: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a number from 1 on, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed: expected a number from 0 to 2**64 - 1, got {self.seed}")

    def micro_batch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(indices, epochs) of a micro-batch, `batch` long both."""
        first = number * self.batch
        epochs, places = np.divmod(np.arange(first, first + self.batch, dtype=np.int64), self.num_samples)
        if not self.shuffle:
            return places, epochs
        needed = range(int(epochs[0]), int(epochs[-1]) + 1)
        for epoch in [epoch for epoch in self._epochs if epoch not in needed]:
            del self._epochs[epoch]
        indices = np.empty_like(places)
        for epoch in needed:
            if epoch not in self._epochs:
                self._epochs[epoch] = permutation(self.num_samples, self.seed, epoch)
            chosen = epochs == epoch
            indices[chosen] = self._epochs[epoch][places[chosen]]
        return indices, epochs


def seed_of(seed: int, number: int) -> int:
    """A seed for one micro-batch, of its dropout say; neighbours have nothing in common."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) & (2**64 - 1)
    x = (x ^ x >> 31) * 0x94D049BB133111EB & (2**64 - 1)
    return (x ^ x >> 29) & (2**63 - 1)


def seed_all(seed: int) -> int:
    """Of torch's, Python's and numpy's random numbers: what data sets and models of others draw from."""
    import torch  # which the order of samples does without

    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # the old way is what they draw from
    return seed


def permutation(num_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """An order of 0 ... num_samples - 1, the same in every version of numpy.

    numpy keeps the bits of a BitGenerator from version to version, but not what a Generator makes of them (NEP 19):
    an order by Generator.permutation could change in the middle of an epoch when numpy is upgraded before a resume.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(num_samples)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)

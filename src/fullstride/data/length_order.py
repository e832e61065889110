"""The order of samples of different lengths: each micro-batch holds samples about as long as each other.

    epoch e         the samples, sorted by length after lengths were multiplied by a random factor within 1 +- `jitter`,
                    cut into batches of B; the batches in a random order
    micro-batch k   is batch k % n of epoch k // n, n = ceil(samples / B)

What is random is a function of (seed, epoch). Every sample comes exactly once an epoch; the shortest ones of an epoch
may be a smaller batch. As with Order, the whole state of the data is one number: that of the next micro-batch.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from . import _random
from .order import permutation

_JITTER = 6  # stream of the seed


@dataclass(frozen=True)
class LengthOrder:
    lengths: NDArray[np.int64]
    """Of each sample, in the unit that is padded."""
    batch: int
    seed: int = 0
    multiple: int = 1
    """Batches are padded to whole multiples of it."""
    jitter: float = 0.03
    """3 % leave 3 % of padding in sentences of 1 to 6 seconds (8 % in multiples of 32 frames), 5 % leave 4.5 %."""
    _epochs: dict[int, list[NDArray[np.int64]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not len(self.lengths):
            raise ValueError("lengths: expected those of one sample at least, got none")
        for name in ("batch", "multiple"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a number from 1 on, got {getattr(self, name)}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter: expected a share from 0 to 1, got {self.jitter}")

    @property
    def batches_of_epoch(self) -> int:
        return -(-len(self.lengths) // self.batch)

    def micro_batch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(indices, epochs) of a micro-batch; the smaller batch of an epoch is shorter than `batch`."""
        epoch, place = divmod(number, self.batches_of_epoch)
        if epoch not in self._epochs:
            self._epochs.clear()
            self._epochs[epoch] = self.epoch(epoch)
        indices = self._epochs[epoch][place]
        return indices, np.full_like(indices, epoch)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch, in their order."""
        samples = np.arange(len(self.lengths), dtype=np.int64)
        noise = _random.uniform(self.seed, _JITTER, 1, samples, np.full_like(samples, epoch))[:, 0]
        keys = self.lengths * (1 + self.jitter * (2 * noise - 1))
        longest_first = np.argsort(-keys, kind="stable").astype(np.int64, copy=False)
        batches = [longest_first[i : i + self.batch] for i in range(0, len(samples), self.batch)]
        return [batches[i] for i in permutation(len(batches), self.seed, epoch)]

    def padding(self, epoch: int = 0) -> float:
        """The share of padding in an epoch."""
        batches = self.epoch(epoch)
        longest = (int(self.lengths[batch].max()) for batch in batches)
        padded = sum(-(-x // self.multiple) * self.multiple * len(b) for x, b in zip(longest, batches, strict=True))
        return 1 - int(self.lengths.sum()) / padded if padded else 0.0

"""Samples that are computed when they are asked for and stored nowhere: a class's centre plus noise.

    label = bits(seed, index) mod classes;  x = (centre[label] + noise * n(seed, index)) / sqrt(1 + noise^2)

Centres and n have mean 0 and variance 1 in each feature, and so has x. What a sample is depends on (seed, index) alone.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from . import _random

_LABELS, _CENTRES, _NOISE = 2, 3, 4  # streams of the seed


@dataclass(frozen=True)
class SyntheticDataset(Dataset[tuple[Tensor, int]]):
    """Batches of (x, labels): float32 (N, num_features) and int64 (N). torch's DataLoader takes it, too.

    first: the index that index 0 stands for. A validation split is one of the same seed whose indices lie elsewhere.
    """

    num_samples: int = 50_000
    num_features: int = 784
    num_classes: int = 1000
    seed: int = 0
    noise: float = 3.0  # 1: as far from the centre as centres are from zero
    first: int = 0

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_features", "num_classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a number from 1 on, got {getattr(self, name)}")

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        """Many at once, as DataLoader asks for them where it can."""
        wrong = [i for i in indices if not -len(self) <= i < len(self)]
        if wrong:
            raise IndexError(f"expected an index below {len(self)}, got {wrong[0]}")
        numbers = np.array(indices, dtype=np.int64) % len(self)
        x, labels = self.batch(numbers, np.zeros_like(numbers))
        return list(zip(x, labels.tolist(), strict=True))

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The epochs change nothing."""
        indices = indices + self.first
        labels = (_random.bits(self.seed, _LABELS, indices) % np.uint64(self.num_classes)).astype(np.int64)
        total = np.sqrt(1 + self.noise**2)
        x = _normal(_random.bits(self.seed, _NOISE, indices), self.num_features, self.noise / total)
        x += _centres(self.num_classes, self.num_features, self.seed, 1 / total)[labels]
        return torch.from_numpy(x), torch.from_numpy(labels)


@lru_cache(maxsize=4)  # 3 MB at full size, for training and validation in one
def _centres(num_classes: int, num_features: int, seed: int, scale: float) -> NDArray[np.float32]:
    return _normal(_random.bits(seed, _CENTRES, np.arange(num_classes)), num_features, scale)


def _normal(keys: NDArray[np.uint64], num_features: int, scale: float) -> NDArray[np.float32]:
    """(N, num_features) numbers of mean 0, standard deviation `scale` and nearly normal distribution from N keys.

    32 random bits make one number: the sum of their four bytes. Every step is one pass over integers or one rounding,
    so that the bits depend neither on the batch nor on the CPU.
    """
    x = np.arange(num_features, dtype=np.uint32) ^ (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    inner = (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    spare = np.empty_like(x)
    _fold(x, spare, 16, 0x7FEB352D)  # mix32 of csrc/simd/random.h
    x ^= inner
    _fold(x, spare, 15, 0x846CA68B)
    _fold(x, spare, 16, 1)
    np.right_shift(x, np.uint32(8), out=spare)
    spare &= np.uint32(0x00FF00FF)
    x &= np.uint32(0x00FF00FF)
    x += spare  # two sums of two bytes, 16 bits apart
    x *= np.uint32(0x00010001)
    x >>= np.uint32(16)  # their sum: 0 ... 1020
    out = x.view(np.int32).astype(np.float32)
    out -= np.float32(510)
    out *= np.float32(scale / np.sqrt(4 * (256**2 - 1) / 12))
    return out


def _fold(x: NDArray[np.uint32], spare: NDArray[np.uint32], shift: int, factor: int) -> None:
    """x = (x ^ x >> shift) * factor, in place."""
    np.right_shift(x, np.uint32(shift), out=spare)
    x ^= spare
    if factor != 1:
        x *= np.uint32(factor)

"""The random bits of csrc/random.h in torch, for references that must round and drop as the kernels do."""

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def random_bits(seed: int, step: int, stream: int, numel: int) -> Tensor:
    """32 bits for each of the indices [0, numel), as int64."""
    index = torch.arange(numel, device="cpu")
    parts = []
    for block, indices in enumerate(index.split(2**32)):
        key = 0
        for part in (seed, step, stream, block):
            key = _mix64(key + part & _MASK64)
        parts.append(_mix32(indices & _MASK32, key & _MASK32, key >> 32))
    return torch.cat(parts)


def _mix32(x: Tensor, outer: int, inner: int) -> Tensor:
    x = x ^ outer
    x = (x ^ x >> 16) * 0x7FEB352D & _MASK32  # int64 wraps, and the lower half is right
    x = x ^ inner
    x = (x ^ x >> 15) * 0x846CA68B & _MASK32
    return x ^ x >> 16


def _mix64(x: int) -> int:
    x = x + 0x9E3779B97F4A7C15 & _MASK64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK64
    return x ^ x >> 31

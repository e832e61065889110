"""The random bits of csrc/simd/random.h in torch, for references that must round and drop as the kernels do."""

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def random_bits(seed: int, step: int, stream: int, index: Tensor) -> Tensor:
    """32 bits for each of the int64 indices, as int64."""
    blocks = index >> 32
    bits = torch.empty_like(index)
    for block in blocks.unique().tolist():
        key = 0
        for part in (seed, step, stream, block):
            key = _mix64(key + part & _MASK64)
        chosen = blocks == block
        bits[chosen] = _mix32(index[chosen] & _MASK32, key & _MASK32, key >> 32)
    return bits


def _mix32(x: Tensor, outer: int, inner: int) -> Tensor:
    x = x ^ outer
    x = (x ^ x >> 16) * 0x7FEB352D & _MASK32  # int64 wraps, and the lower half is right
    x = x ^ inner
    x = (x ^ x >> 15) * 0x846CA68B & _MASK32
    return x ^ x >> 16


def _mix64(x: int) -> int:
    """splitmix64."""
    x = x + 0x9E3779B97F4A7C15 & _MASK64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK64
    return x ^ x >> 31

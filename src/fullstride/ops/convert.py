"""Conversions between the formats that tensors are stored in.

- `to_bf16`, `to_fp16`, `to_float`: rounded to nearest, ties to even, denormals kept. The gradient is converted back.
- `to_bf16(stochastic=True)`: rounded up in magnitude with the probability of the fraction that is cut off, so that the
  mean is right. The random bits are a function of (seed, step, stream, index): a different stream for each tensor.
- `split`, `merge`: an fp32 tensor as bf16 `hi` and int16 `lo`, and every bit of it back:

      hi = (bits + 0x8000) >> 16      lo = bits - (hi << 16)      bits = (hi << 16) + lo

  hi is x rounded to nearest (ties away from zero). A NaN becomes the quiet one, so that hi shows it. No gradients.
"""

import torch
from torch import Tensor

from .. import _native
from ._formats import merge as merge_reference
from ._formats import split as split_reference
from ._random import random_bits
from ._tensors import is_dense, kernel_dtype, needs_grad, takes_kernel

_SEEDS = 2**64


def convert_reference(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


def stochastic_reference(x: Tensor, seed: int, step: int, stream: int) -> Tensor:
    """x in bf16, rounded up in magnitude where 16 random bits and the lower half of its fp32 pattern carry."""
    x = x.float()
    bits = x.contiguous().view(torch.int32).flatten().long() & 0xFFFFFFFF
    noise = random_bits(seed, step, stream, torch.arange(bits.numel(), device="cpu")) & 0xFFFF
    rounded = bits + noise.to(bits.device)
    infinite = (rounded & 0x7F800000 == 0x7F800000) | ~x.flatten().isfinite()  # nothing becomes that by noise alone
    half = torch.where(infinite, bits, rounded) >> 16
    half = torch.where(x.flatten().isnan(), half | 0x40, half)
    return torch.where(half >= 2**15, half - 2**16, half).to(torch.int16).view(torch.bfloat16).view(x.shape)


def _convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    x = x if is_dense(x) else x.contiguous()
    y = torch.empty_like(x, dtype=dtype)
    _native.kernels.convert(x.data_ptr(), y.data_ptr(), x.numel(), kernel_dtype(x), kernel_dtype(y))
    return y


def _stochastic(x: Tensor, seed: int, step: int, stream: int) -> Tensor:
    x = x.contiguous()  # the random bits follow the index, not the place in memory
    y = torch.empty_like(x, dtype=torch.bfloat16)
    _native.kernels.convert_stochastic(x.data_ptr(), y.data_ptr(), x.numel(), seed, step, stream)
    return y


class ConvertFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dtype, noise):  # type: ignore[no-untyped-def]
        ctx.dtype = x.dtype
        if noise is None:
            return _convert(x, dtype)
        return (_stochastic if takes_kernel(x) else stochastic_reference)(x, *noise)

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        return _to(dy, ctx.dtype), None, None


def _to(x: Tensor, dtype: torch.dtype) -> Tensor:
    if not x.is_floating_point():
        raise ValueError(f"convert: expected a floating-point tensor, got {x.dtype}; convert it with x.float()")
    if x.dtype == dtype:
        return x
    if not _takes_kernel(x):
        return convert_reference(x, dtype)
    if needs_grad(x):
        y: Tensor = ConvertFunction.apply(x, dtype, None)
        return y
    return _convert(x, dtype)


def _takes_kernel(x: Tensor) -> bool:
    """As takes_kernel, and fp16 too: the only kernel that reads it."""
    return takes_kernel(x.detach().view(torch.bfloat16) if x.dtype == torch.float16 else x)


def to_bf16(x: Tensor, stochastic: bool = False, seed: int = 0, step: int = 0, stream: int = 0) -> Tensor:
    """x in bf16, x itself if it is that already."""
    if not stochastic:
        return _to(x, torch.bfloat16)
    for name, value in (("seed", seed), ("step", step), ("stream", stream)):
        if not 0 <= value < _SEEDS:
            raise ValueError(f"to_bf16: expected {name} in [0, 2^64), got {value}; take it modulo 2**64")
    if x.dtype == torch.bfloat16:
        return x
    if x.dtype != torch.float32:
        raise ValueError(f"to_bf16: expected fp32 to round stochastically, got {x.dtype}; convert it with x.float()")
    if needs_grad(x):  # the reference too: rounding bits has no gradient of its own
        y: Tensor = ConvertFunction.apply(x, torch.bfloat16, (seed, step, stream))
        return y
    return (_stochastic if takes_kernel(x) else stochastic_reference)(x, seed, step, stream)


def to_fp16(x: Tensor) -> Tensor:
    """x in fp16, x itself if it is that already; infinity beyond 65504."""
    return _to(x, torch.float16)


def to_float(x: Tensor) -> Tensor:
    """x in fp32, x itself if it is that already."""
    return _to(x, torch.float32)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """(hi, lo) of an fp32 tensor."""
    if x.dtype != torch.float32:
        raise ValueError(f"split: expected fp32, got {x.dtype}; convert it with x.float()")
    x = x.detach().contiguous()
    if not takes_kernel(x):
        return split_reference(x)
    hi, lo = torch.empty_like(x, dtype=torch.bfloat16), torch.empty_like(x, dtype=torch.int16)
    _native.kernels.split(x.data_ptr(), hi.data_ptr(), lo.data_ptr(), x.numel())
    return hi, lo


def merge(hi: Tensor, lo: Tensor) -> Tensor:
    """The fp32 tensor whose halves these are."""
    if hi.dtype != torch.bfloat16 or lo.dtype != torch.int16 or hi.shape != lo.shape:
        raise ValueError(
            f"merge: expected hi in bf16 and lo in int16 of one shape, got {hi.dtype} {tuple(hi.shape)} and"
            f" {lo.dtype} {tuple(lo.shape)}; pass what split returned"
        )
    hi, lo = hi.detach().contiguous(), lo.contiguous()
    if not (takes_kernel(hi) and takes_kernel(lo.view(torch.bfloat16))):
        return merge_reference(hi, lo)
    y = torch.empty_like(hi, dtype=torch.float32)
    _native.kernels.merge(hi.data_ptr(), lo.data_ptr(), y.data_ptr(), y.numel())
    return y

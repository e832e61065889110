"""Dropout whose mask is a function of (seed, step, index): backward makes it anew, nothing is stored.

    y = x * keep / (1 - p),   keep = bits(seed, step, index) >= p * 2^32 - 2^31

where bits are 32 random bits taken as a signed number and index counts the elements of x in row-major order. The same
seed and step give the same mask whatever the number of threads.
"""

import torch
from torch import Tensor

from .. import _native
from ._random import random_bits
from ._tensors import kernel_dtype, needs_grad, takes_kernel

_MASK64 = (1 << 64) - 1


def keep_mask(numel: int, p: float, seed: int, step: int = 0, first: int = 0) -> Tensor:
    """Which of the elements `first` to `first` + `numel` are kept. First of all a specification; it is slow."""
    bits = random_bits(seed, step, 0, torch.arange(first, first + numel, device="cpu"))
    signed = bits - ((bits >> 31) << 32)
    return signed >= threshold(p) - (1 << 31)


def dropout_reference(x: Tensor, p: float, seed: int, step: int = 0) -> Tensor:
    """y in the dtype of x, computed in fp32 or wider."""
    wide = x if x.dtype == torch.float64 else x.float()
    factor = keep_mask(x.numel(), p, seed, step).view(x.shape).to(x.device, wide.dtype) * scale(p)
    return (wide * factor).to(x.dtype)


class DropoutFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed, step):  # type: ignore[no-untyped-def]
        ctx.arguments = p, seed, step
        return _drop(x, seed, step, 0, threshold(p), scale(p))

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        p, seed, step = ctx.arguments
        if needs_grad(dy):  # with create_graph=True; the gradient is dropout by the same mask
            return DropoutFunction.apply(dy, p, seed, step), None, None, None
        return _drop(dy, seed, step, 0, threshold(p), scale(p)), None, None, None


def dropout(x: Tensor, p: float = 0.5, seed: int | None = None, training: bool = True, step: int = 0) -> Tensor:
    """x with elements dropped with probability p and the others divided by 1 - p.

    The seed is any integer of 64 bits; None draws one from torch's default generator, so that torch.manual_seed
    governs it. Tensors the kernel does not know go through the reference.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: expected a probability p from 0 to 1, got {p}")
    if not training or p == 0:
        return x
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    seed, step = seed & _MASK64, step & _MASK64  # negative ones too: the kernel takes them without a sign
    if not takes_kernel(x):
        return dropout_reference(x, p, seed, step)
    if needs_grad(x):
        return DropoutFunction.apply(x, p, seed, step)
    return _drop(x, seed, step, 0, threshold(p), scale(p))


def threshold(p: float) -> int:
    """The number of the 2^32 patterns that drop an element."""
    return min(round(p * 2**32), 2**32)


def scale(p: float) -> float:
    return 1 / (1 - p) if p < 1 else 0.0


def _drop(x: Tensor, seed: int, step: int, first: int, threshold: int, scale: float) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    _native.kernels.dropout(x.data_ptr(), y.data_ptr(), x.numel(), seed, step, first, threshold, scale, kernel_dtype(x))
    return y

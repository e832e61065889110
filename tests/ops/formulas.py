"""Formulas written out in double precision, for values at which torch's own code differs from one CPU to the next.

GELU of infinity is NaN and of 3e38 infinity where torch asks oneDNN on AVX-512, and infinity and 3e38 elsewhere; the
slope of the tanh GELU is NaN at 1e30 in fp32. In double precision no fp32 number overflows: what is NaN here is so by
the formula, from NaN or from 0 * infinity.
"""

import math

import torch
from torch import Tensor


def activation(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """(values, slopes) in fp64."""
    values = [_activation(name, value) for value in x.flatten().tolist()]
    value, slope = torch.tensor(values, dtype=torch.float64).unbind(1)
    return value.view(x.shape), slope.view(x.shape)


def _activation(name: str, x: float) -> tuple[float, float]:
    match name:
        case "none":
            return x, 1.0
        case "relu":
            return (0.0, 0.0) if x <= 0 else (x, 1.0)  # NaN is above nothing and below nothing: it passes
        case "silu":
            share = math.exp(min(x, 0.0)) / (1 + math.exp(-abs(x)))
            return x * share, share * (1 + x * (1 - share))
        case "gelu":
            share = math.erfc(-x / math.sqrt(2)) / 2
            return x * share, share + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        case "gelu_tanh":
            scale, cubic = math.sqrt(2 / math.pi), 0.044715
            t = math.tanh(scale * (x + cubic * x * x * x))
            return x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t * t) / 2 * scale * (1 + 3 * cubic * x * x)
    raise AssertionError(name)


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return e / e.sum(dim=-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    shifted = x - x.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b, each sum over its own products alone: (..., m, k), (..., k, n) -> (..., m, n)."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(dim=-2)

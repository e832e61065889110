"""A sum and the norm behind it, as one operation.

    s = a + b,   y = norm(s)

nn.RMSNorm, nn.LayerNorm and what is known to compute RMSNorm (probes/rms_norm.py). One pass forward instead of two, and
in backward the gradient of s from elsewhere is added where that of the norm is made.
"""

from typing import Any

import torch
from torch import nn

from ...nn.rms_norm import eps_for
from ...ops._tensors import KERNEL_DTYPES
from ...ops.layer_norm import layer_norm
from ...ops.rms_norm import rms_norm
from .kinds import PLAIN


def residual_norm(norm: nn.Module, a: Any, b: Any) -> tuple[Any, Any]:
    """(y, s) of a norm whose kind norm_of() knows; a and b may be anything that can be added."""
    if not _fits(norm, a, b):
        s = a + b
        return norm(s), s
    if a.dtype is not b.dtype:  # bf16 beside an fp32 stream, which torch widens while adding
        a, b = a.float(), b.float()
    if isinstance(norm, nn.LayerNorm):
        return layer_norm(a, norm.weight, norm.bias, norm.eps, residual=b)
    weight: Any = norm.weight
    return rms_norm(a, weight, eps_for(norm, a.dtype), residual=b)


def _fits(norm: nn.Module, a: Any, b: Any) -> bool:
    """Whether nothing is broadcast, and the norm goes over the last dimension; if not, it has its own word on that."""
    if type(a) not in PLAIN or type(b) not in PLAIN or a.shape != b.shape or not a.dim():
        return False
    if a.dtype not in KERNEL_DTYPES or b.dtype not in KERNEL_DTYPES or torch.compiler.is_compiling():
        return False
    shape: Any = norm.normalized_shape if isinstance(norm, (nn.RMSNorm, nn.LayerNorm)) else norm.weight.shape
    return tuple(shape) == a.shape[-1:]

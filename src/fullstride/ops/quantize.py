"""Symmetric int8 quantisation of a matrix, with an fp32 scale for each row or each column.

    absmax = max |x| over the row (column)
    scale = absmax / 127
    q = round(x * (127 / absmax)), ties to even, in [-127, 127]
    dequantize: y = q * scale

A row with a NaN or an infinity gets scale NaN and q = 0: all of it comes back as NaN, so that nothing is hidden. A row
of zeros, or so small that its scale would be denormal (absmax < 127 * 2^-126), gets scale 0 and q = 0.
"""

from typing import Literal

import torch
from torch import Tensor

from .. import _native
from ._tensors import as_rows, kernel_dtype, takes_kernel

Per = Literal["row", "column"]


def quantize_reference(x: Tensor, per: Per = "row") -> tuple[Tensor, Tensor]:
    rows = x.detach().float().reshape(x.shape[:-1].numel(), x.shape[-1])
    dim = 1 if per == "row" else 0
    padded = torch.nn.functional.pad(rows.abs(), (0, 1) if per == "row" else (0, 0, 0, 1))  # amax of nothing is 0
    absmax = padded.amax(dim, keepdim=True)
    normal = absmax >= 127 * torch.finfo(torch.float32).tiny
    scale = torch.where(normal, absmax / 127, 0.0)
    inverse = torch.where(normal, torch.full_like(absmax, 127) / absmax, 0.0)  # 127 / absmax would round twice
    scale = torch.where(absmax.isfinite(), scale, float("nan"))
    q = torch.where(absmax.isfinite(), (rows * inverse).round(), 0.0)
    shape = x.shape[:-1] if per == "row" else x.shape[-1:]
    return q.to(torch.int8).view(x.shape), scale.reshape(shape)


def dequantize_reference(q: Tensor, scale: Tensor, per: Per = "row", dtype: torch.dtype = torch.float32) -> Tensor:
    return (q * (scale.unsqueeze(-1) if per == "row" else scale)).to(dtype)


def quantize(x: Tensor, per: Per = "row") -> tuple[Tensor, Tensor]:
    """(q, scale): the last dimension of x is the columns, all others together the rows. Not differentiable."""
    _check_per(per)
    if x.dim() == 0 or not x.is_floating_point():
        raise ValueError(f"quantize: expected a floating-point matrix, got {x.dtype} of shape {tuple(x.shape)}")
    if not takes_kernel(x):
        return quantize_reference(x, per)
    x, rows, cols = as_rows(x)
    q = torch.empty_like(x, dtype=torch.int8)
    scale = x.new_empty(x.shape[:-1] if per == "row" else x.shape[-1:], dtype=torch.float32)
    kernel = _native.kernels.quantize_rows if per == "row" else _native.kernels.quantize_columns
    kernel(x.data_ptr(), q.data_ptr(), scale.data_ptr(), rows, cols, kernel_dtype(x))
    return q, scale


def dequantize(q: Tensor, scale: Tensor, per: Per = "row", dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix in fp32 or bf16."""
    _check_per(per)
    if q.dtype != torch.int8 or q.dim() == 0:
        raise ValueError(f"dequantize: expected an int8 matrix, got {q.dtype} of shape {tuple(q.shape)}")
    shape = q.shape[:-1] if per == "row" else q.shape[-1:]
    if scale.shape != shape or scale.dtype != torch.float32:
        raise ValueError(
            f"dequantize: expected an fp32 scale for each {per} of {tuple(q.shape)}, of shape {tuple(shape)},"
            f" got {scale.dtype} of shape {tuple(scale.shape)}"
        )
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dequantize: expected dtype torch.float32 or torch.bfloat16, got {dtype}")
    if not takes_kernel(scale) or not q.is_cpu:
        return dequantize_reference(q, scale, per, dtype)
    q, rows, cols = as_rows(q)
    scale = scale.contiguous()
    y = torch.empty_like(q, dtype=dtype)
    kernel = _native.kernels.dequantize_rows if per == "row" else _native.kernels.dequantize_columns
    kernel(q.data_ptr(), scale.data_ptr(), y.data_ptr(), rows, cols, kernel_dtype(y))
    return y


def _check_per(per: str) -> None:
    if per not in ("row", "column"):
        raise ValueError(f"expected per='row' or per='column', got {per!r}")

"""A convolution whose stride is its kernel: the patch embedding of a ViT, the downsampling of a ConvNeXt.

    y[b, n, i, j] = sum over c, k, l of x[b, c, i p + k, j q + l] W[n, c, k, l] + b[n]

x: (B, C, H, W), W: (N, C, p, q), b: (N). No number of x is in two patches, so x copied once, patch by patch, is the
matrix of one product: rows (B h w, C p q), h = H // p, w = W // q, by ops.linear, and so are both gradients. What is
left over at the right and the bottom is cropped, as torch does. Of x with its channels innermost in memory the columns
are (p, q, C), which copies longer pieces, and W is turned. y is (B, N, h, w) with its channels innermost, so that
y.flatten(2).transpose(1, 2), the words of a Transformer, is a view. Kept for backward: rows, if W wants its gradient.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ._tensors import KERNEL_DTYPES, takes_kernel
from .linear import linear

LEAST_WORK = 1 << 21  # multiplications a call from which on it pays: below, calls of Python cost more than is won
_LEAST_FILTERS = 128  # that earn a copy of x
_LEAST_WIDTH = 4  # numbers in a row of a patch, below which the copy takes too long
_LEAST_CHANNELS = 384  # innermost in memory, from which on it does not, however small the patch


def patches_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y in the dtype of F.conv2d, which is that of autocast when it is on."""
    return F.conv2d(x, weight, None if bias is None else bias.to(weight.dtype), stride=weight.shape[2:])


def patches(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The convolution of x (B, C, H, W) or (C, H, W) by W (N, C, p, q) with a stride of (p, q).

    What the kernels do not know, and what is empty, goes through the reference.
    """
    if x.dim() not in (3, 4) or weight.dim() != 4 or x.shape[-3] != weight.shape[1]:
        raise ValueError(
            "patches: expected x of (batch, in, height, width) and weight of (out, in, height, width),"
            f" got {tuple(x.shape)} and {tuple(weight.shape)}; groups are torch's"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"patches: expected bias of shape {tuple(weight.shape[:1])}, the filters of weight, got {tuple(bias.shape)}"
        )
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
    if not _takes(x, weight, bias, dtype, autocast):
        return patches_reference(x, weight, bias)
    is_one = x.dim() == 3
    y = _product(x.unsqueeze(0) if is_one else x, weight, bias, dtype).permute(0, 3, 1, 2)
    return y.squeeze(0) if is_one else y


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(B, h, w, N)"""
    height, width = weight.shape[2:]
    tall, wide = x.shape[2] // height, x.shape[3] // width
    cells = x[:, :, : tall * height, : wide * width].unflatten(3, (wide, width)).unflatten(2, (tall, height))
    if has_inner_channels(x):
        cells, weight = cells.permute(0, 2, 4, 3, 5, 1), weight.permute(0, 2, 3, 1)
    else:
        cells = cells.permute(0, 2, 4, 1, 3, 5)
    rows = cells.to(dtype, memory_format=torch.contiguous_format).flatten(3)  # one pass, whether it casts or not
    return linear(rows, weight.flatten(1), bias)


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether patches() is faster than torch's own, for a layer that can choose.

    Forward and backward of 12 x 3 x 224 x 224 into patches of 16 and 640 channels took torch 1.21 times as long in fp32
    (23.7 against 19.7 ms) and 1.53 in bf16 (16.9 against 11.0), with patches of 14 and 384 channels 1.07 and 1.25; of
    4 x 3 x 224 x 224 with 32 and 768 channels 1.51 and 1.87, and 1.02 and 0.98 with 4 and 96 channels. Patches of 2
    between stages, with dx: 0.65 and 0.50 from 96 to 192 channels; if these are innermost in memory 1.00 and 0.82, from
    192 to 384 1.05 and 0.98, from 384 to 768 1.33 and 1.56. (One core of Zen 5, seconds of CPU under load.)
    """
    if x.dim() not in (3, 4) or not pays_for(weight) or not takes_kernel(x):
        return False
    if weight.shape[3] < _LEAST_WIDTH and not has_inner_channels(x):
        return False
    return x.numel() * weight.shape[0] >= LEAST_WORK


def pays_for(weight: Tensor) -> bool:
    """Whether there are x for which it does."""
    if weight.dim() != 4 or weight.shape[0] < _LEAST_FILTERS or weight.numel() == 0:
        return False
    _, channels, height, width = weight.shape
    return height * width > 1 and (width >= _LEAST_WIDTH or channels >= _LEAST_CHANNELS)


def _takes(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, autocast: bool) -> bool:
    if not (takes_kernel(x) and takes_kernel(weight) and takes_kernel(bias)):
        return False
    if dtype not in KERNEL_DTYPES or not (autocast or weight.dtype is dtype):
        return False
    return x.numel() > 0 and 0 < weight.shape[2] <= x.shape[-2] and 0 < weight.shape[3] <= x.shape[-1]


def has_inner_channels(x: Tensor) -> bool:
    return x.stride(-3) == 1 and not x.is_contiguous()

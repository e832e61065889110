"""Gradients of a whole list of tensors in one call.

    grad_norm:    sqrt(sum of g^2 over all elements of all tensors), and whether all of them are finite
    accumulate_:  target += scale * source, sums in fp32
    scale_:       g *= factor

The norm is summed in double: the square of an fp32 number cannot overflow there, so the sum is finite exactly if all
gradients are, and the check costs nothing. Its bits do not depend on the number of threads. Gradients whose sum was
remembered when they were written (_gradient_norms.py) are not read again.
"""

import ctypes
import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _native
from ._gradient_norms import recall
from ._tensors import is_dense, kernel_dtype, mark_written, takes_kernel


def grad_norm_reference(tensors: Sequence[Tensor]) -> tuple[float, bool]:
    norm = math.hypot(*(torch.linalg.vector_norm(t.detach(), dtype=torch.float64).item() for t in tensors))
    return norm, math.isfinite(norm)


def accumulate_reference_(targets: Sequence[Tensor], sources: Sequence[Tensor], scale: float = 1.0) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.add_(source.to(target.dtype), alpha=scale)


def scale_reference_(tensors: Sequence[Tensor], factor: float) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


def grad_norm(tensors: Sequence[Tensor]) -> tuple[float, bool]:
    """(norm, finite). Tensors may be fp32 and bf16 mixed; those the kernel does not know go through the reference."""
    sums = [recall(t) for t in tensors]
    known = sum(known for known in sums if known is not None)
    fast, rest = _by_kernel([t for t, known in zip(tensors, sums, strict=True) if known is None])
    fast = [t if is_dense(t) else t.contiguous() for t in fast]  # kept until the kernel is done
    result = ctypes.c_double(0)
    if fast:
        table = _table(fast)
        _native.kernels.grad_norm(table.buffer_info()[0], len(fast), ctypes.byref(result))
    norm = with_known(result.value, known)
    norm = math.hypot(norm, grad_norm_reference(rest)[0]) if rest else norm
    return norm, math.isfinite(norm)


def with_known(norm: float, sum_of_squares: float) -> float:
    """The norm of all, from that of some and the sum of squares of the others."""
    return math.sqrt(norm * norm + sum_of_squares) if sum_of_squares else norm


@torch.no_grad()
def accumulate_(targets: Sequence[Tensor], sources: Sequence[Tensor], scale: float = 1.0) -> None:
    """targets[i] += scale * sources[i]: fp32 targets, fp32 or bf16 sources. No target may stand in the list twice."""
    _check_pairs(targets, sources)
    all_fast = takes_kernel(*targets) and takes_kernel(*sources)
    into, added, rest = [], [], []
    for target, source in zip(targets, sources, strict=True):
        if not (all_fast or (takes_kernel(target) and takes_kernel(source))) or not is_dense(target):
            rest.append((target, source))
            continue
        into.append(target)
        same_layout = target.stride() == source.stride()
        added.append(source if same_layout else torch.empty_like(target, dtype=source.dtype).copy_(source))
    if into:
        table, sources_table = _table(into), _table(added)
        _native.kernels.grad_accumulate(table.buffer_info()[0], sources_table.buffer_info()[0], len(into), scale)
        mark_written(into)
    for target, source in rest:
        accumulate_reference_([target], [source], scale)


@torch.no_grad()
def scale_(tensors: Sequence[Tensor], factor: float) -> None:
    """Every tensor times factor, in place. No tensor may stand in the list twice."""
    fast, rest = _by_kernel(tensors)
    dense = [t for t in fast if is_dense(t)]
    if dense:
        table = _table(dense)
        _native.kernels.grad_scale(table.buffer_info()[0], len(dense), factor)
        mark_written(dense)
    scale_reference_([t for t in fast if not is_dense(t)] + rest, factor)


def _by_kernel(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Those the kernels take, and the rest."""
    if takes_kernel(*tensors):  # one question instead of hundreds, when the dtypes are not mixed
        return list(tensors), []
    return [t for t in tensors if takes_kernel(t)], [t for t in tensors if not takes_kernel(t)]


def _table(tensors: Sequence[Tensor]) -> "array[int]":
    """An array of fs_tensor, which is three 64-bit integers. A third of the time of a ctypes structure."""
    table = array("q")
    for t in tensors:
        table.extend((t.data_ptr(), t.numel(), kernel_dtype(t)))
    return table


def _check_pairs(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    if len(targets) != len(sources):
        raise ValueError(f"accumulate_: expected a source for each of {len(targets)} targets, got {len(sources)}")
    for i, (target, source) in enumerate(zip(targets, sources, strict=True)):
        if target.shape != source.shape:
            raise ValueError(
                f"accumulate_: expected source {i} of the shape of its target, {tuple(target.shape)},"
                f" got {tuple(source.shape)}"
            )
        if target.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"accumulate_: expected fp32 targets, got {target.dtype} at {i}; sums in 16 bits lose small gradients"
            )

"""Embedding: rows of a table by their index.

    y[i] = weight[indices[i]]
    dweight[v] = sum of dy[i] over the i with indices[i] == v

The sum is in fp32 and in the order of i, whatever the dtype and the number of threads, and is rounded once.
"""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native
from ._tensors import kernel_dtype, mark_written, needs_grad, takes_kernel
from ._tied_gradients import grad_to_add_to
from ._twice import by_torch_for_graphs

INDEX_DTYPES = (torch.int64, torch.int32)


def embedding_reference(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    return F.embedding(indices, weight, padding_idx)


def _lookup(indices: Tensor, weight: Tensor) -> Tensor:
    """The rows at these contiguous indices."""
    weight = weight.contiguous()
    vocab, dim = weight.shape
    y = weight.new_empty(*indices.shape, dim)
    bad = ctypes.c_int64(-1)
    _native.kernels.embedding_forward(
        indices.data_ptr(), weight.data_ptr(), y.data_ptr(), ctypes.byref(bad), indices.numel(), vocab, dim,
        indices.dtype == torch.int32, kernel_dtype(weight),
    )  # fmt: skip
    if bad.value >= 0:
        raise _out_of_range("embedding", indices, bad.value, vocab)
    return y


def _by_torch(ctx, dy):  # type: ignore[no-untyped-def]
    indices, rows = ctx.saved_tensors[0].flatten().long(), dy.flatten(0, -2)
    if ctx.padding >= 0:
        rows = rows.masked_fill((indices == ctx.padding).unsqueeze(-1), 0)
    dweight = rows.new_zeros(ctx.shape, dtype=torch.float32).index_add(0, indices, rows.float())
    return None, dweight.to(dy.dtype), None


class EmbeddingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, indices, weight, padding):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(indices)
        ctx.padding, ctx.shape = padding, weight.shape
        return _lookup(indices, weight)

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        total = grad_to_add_to(ctx.next_functions[1][0], dy, ctx.shape.numel())
        if total is not None and takes_kernel(total) and takes_kernel(dy) and total.is_contiguous():
            _sum_rows(total, ctx.saved_tensors[0], dy.contiguous(), ctx.padding, accumulate=True)
            mark_written([total])
            return None, None, None
        dweight = dy.new_empty(ctx.shape)
        _sum_rows(dweight, ctx.saved_tensors[0], dy.contiguous(), ctx.padding, accumulate=False)
        return None, dweight, None


def _sum_rows(dweight: Tensor, indices: Tensor, dy: Tensor, padding: int, accumulate: bool) -> None:
    vocab, dim = dweight.shape
    _native.kernels.embedding_backward(
        indices.data_ptr(), dy.data_ptr(), dweight.data_ptr(), indices.numel(), vocab, dim, padding, accumulate,
        indices.dtype == torch.int32, kernel_dtype(dy), kernel_dtype(dweight),
    )  # fmt: skip


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """weight[indices], [*, dim] for indices of any shape; the row `padding_idx` gets no gradient."""
    padding = _check("embedding", indices, weight, padding_idx)
    if not (takes_kernel(weight) and _plain(indices)):
        return embedding_reference(indices, weight, padding_idx)
    indices = indices.contiguous()
    if needs_grad(weight):
        y: Tensor = EmbeddingFunction.apply(indices, weight, padding)
        return y
    return _lookup(indices, weight)


def _plain(indices: Tensor) -> bool:
    return type(indices) is Tensor and indices.is_cpu and indices.layout == torch.strided


def _out_of_range(op: str, indices: Tensor, place: int, vocab: int) -> IndexError:
    return IndexError(
        f"{op}: expected indices in [0, {vocab}), the rows of weight, got {indices.flatten()[place].item()} at place"
        f" {place}; check the vocabulary of the data against that of the model"
    )


def _check(op: str, indices: Tensor, weight: Tensor, padding_idx: int | None) -> int:
    """The row without a gradient, -1 for none."""
    if weight.dim() != 2:
        raise ValueError(f"{op}: expected a weight of shape [vocab, dim], got {tuple(weight.shape)}; reshape it")
    if indices.dtype not in INDEX_DTYPES:
        raise ValueError(f"{op}: expected indices of dtype int64 or int32, got {indices.dtype}; convert them")
    if padding_idx is None:
        return -1
    vocab = weight.shape[0]
    if not -vocab <= padding_idx < vocab:
        raise ValueError(
            f"{op}: expected padding_idx in [{-vocab}, {vocab}), the rows of weight, got {padding_idx}; or None"
        )
    return padding_idx % vocab

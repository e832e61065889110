"""Softmax cross-entropy over the last dimension, with the gradient computed in the forward pass.

    q = (1 - label_smoothing) * onehot(target) + label_smoothing / classes
    loss = -sum(q * log_softmax(logits))
    dlogits = softmax(logits) - q

One call reads the logits once and leaves both the losses and the gradient, so that log_softmax is never stored and
backward has nothing to do but to multiply by the incoming gradient, if that is not 1. Losses are fp32 whatever the
logits are. A row whose target is ignore_index has loss 0 and gradient 0 even if its logits are not finite (torch's
gradient is NaN there); in everything else NaN and infinity come out as in torch.nn.functional.cross_entropy.
"""

import ctypes

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from .. import _native
from ._tensors import as_rows, kernel_dtype, needs_grad, pointer, takes_kernel
from ._twice import add, by_torch_for_graphs, gradients_of, placed, stand_in

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy_reference(
    logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """The loss in fp32 (fp64 for fp64 logits): a scalar, or of the shape of target for reduction="none"."""
    ignored = target == ignore_index
    wide = logits if logits.dtype == torch.float64 else logits.float()
    log_p = torch.log_softmax(wide.masked_fill(ignored.unsqueeze(-1), 0.0), dim=-1)
    losses = -log_p.gather(-1, target.masked_fill(ignored, 0).unsqueeze(-1)).squeeze(-1)
    if label_smoothing > 0:
        losses = (1 - label_smoothing) * losses - label_smoothing * log_p.mean(dim=-1)
    losses = losses.masked_fill(ignored, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / (~ignored).sum() if reduction == "mean" else losses.sum()


def _forward(
    logits: Tensor, target: Tensor, dlogits: Tensor | None, ignore_index: int, label_smoothing: float, reduction: str
) -> Tensor:
    """The loss; the gradient goes to dlogits, which may be the logits themselves. Both are dense."""
    target = target.contiguous()
    _, rows, classes = as_rows(logits)
    losses = logits.new_empty(target.shape, dtype=torch.float32)
    total, valid = ctypes.c_double(), (ctypes.c_int64 * 2)()
    _native.kernels.cross_entropy(
        logits.data_ptr(), target.data_ptr(), pointer(dlogits), losses.data_ptr(), ctypes.addressof(total),
        ctypes.addressof(valid), rows, classes, ignore_index, label_smoothing, reduction == "mean",
        kernel_dtype(logits),
    )  # fmt: skip
    if valid[1] >= 0:
        raise _out_of_range(target, valid[1], classes, ignore_index)
    return losses if reduction == "none" else logits.new_full((), total.value, dtype=torch.float32)


def _by_torch(ctx, dloss, dplace):  # type: ignore[no-untyped-def]
    """The logits are gone. All derivatives follow from their softmax p, whose logarithm has the same softmax."""
    kept, target, place = ctx.saved_tensors
    if dloss is None:
        return dplace, *(None,) * 5
    ctx.overwrite = False  # another pass over the graph that is made here needs them, too
    ignore_index, label_smoothing, reduction = ctx.options
    ignored = target == ignore_index
    num_rows = (~ignored).sum().clamp(min=1) if reduction == "mean" else 1
    q = torch.zeros_like(kept, dtype=torch.float32).scatter_(-1, target.masked_fill(ignored, 0).unsqueeze(-1), 1.0)
    p = kept.float() * num_rows + (1 - label_smoothing) * q + label_smoothing / kept.shape[-1]
    logits = placed(place, p.clamp(min=torch.finfo(p.dtype).tiny).log())
    (dlogits,) = gradients_of(lambda x: cross_entropy_reference(x, target, *ctx.options), [logits], dloss, [True])
    return add(dlogits.to(kept.dtype), dplace), *(None,) * 5


class CrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, ignore_index, label_smoothing, reduction, inplace):  # type: ignore[no-untyped-def]
        dense = logits.contiguous()
        overwrite = inplace or dense is not logits  # a copy made here is ours to overwrite
        dlogits = dense.detach() if overwrite else torch.empty_like(dense)
        loss = _forward(dense, target, dlogits, ignore_index, label_smoothing, reduction)
        if overwrite:
            # mark_dirty would ask for the logits as an output. What matters is that autograd sees the write: an
            # earlier op that kept these logits for its backward pass then raises, instead of using the gradient.
            increment_version(dense)
        place = stand_in(logits)
        ctx.save_for_backward(dlogits, target, place)
        ctx.overwrite, ctx.options = overwrite, (ignore_index, label_smoothing, reduction)
        ctx.set_materialize_grads(False)
        return loss, place

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dloss, dplace):  # type: ignore[no-untyped-def]
        if dloss is None:  # the second derivative alone
            return dplace, None, None, None, None, None
        dlogits, _, _ = ctx.saved_tensors
        uniform = not any(dloss.stride())  # one number for all rows: a scalar, or the expanded gradient of a sum
        if uniform and dloss.numel() and dloss.as_strided((), ()).item() == 1:
            return add(dlogits, dplace), None, None, None, None, None
        # In place there is no second buffer to spare: a second backward pass then raises by the version.
        out = dlogits if ctx.overwrite else torch.empty_like(dlogits)
        _, rows, classes = as_rows(dlogits)
        factor = dloss if uniform else dloss.contiguous()
        _native.kernels.cross_entropy_scale(
            dlogits.data_ptr(), factor.data_ptr(), 0 if uniform else 1, out.data_ptr(), rows, classes,
            kernel_dtype(dlogits),
        )  # fmt: skip
        if ctx.overwrite:
            increment_version(dlogits)
        return add(out, dplace), None, None, None, None, None


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    inplace: bool = False,
) -> Tensor:
    """The loss of logits [..., classes] for int64 targets [...]: the classes are the last dimension, unlike in torch.

    inplace=True lets the gradient overwrite the logits, which saves a tensor of their size: the caller must not use
    them afterwards, and backward can be run once. Without a gradient to compute, they are left alone.
    """
    _check(logits, target, label_smoothing, reduction)
    if inplace and _shares_leaf(logits):
        raise ValueError(
            "cross_entropy: inplace=True would overwrite a leaf that requires a gradient; pass the output of a layer,"
            " or inplace=False"
        )
    if not takes_kernel(logits) or not target.is_cpu:
        if not torch.compiler.is_compiling():
            _check_range(target, logits.shape[-1], ignore_index)
        return cross_entropy_reference(logits, target, ignore_index, label_smoothing, reduction)
    if needs_grad(logits):
        loss, _ = CrossEntropyFunction.apply(logits, target, ignore_index, label_smoothing, reduction, inplace)
        return loss
    return _forward(logits.contiguous(), target, None, ignore_index, label_smoothing, reduction)


def _shares_leaf(x: Tensor) -> bool:
    """Whether x is a leaf that requires a gradient, or a view of one: overwriting it would change a parameter."""
    base = x._base if x._is_view() else None
    return any(tensor is not None and tensor.is_leaf and tensor.requires_grad for tensor in (x, base))


def _check(logits: Tensor, target: Tensor, label_smoothing: float, reduction: str) -> None:
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"cross_entropy: expected logits [..., classes] with classes >= 1, got {tuple(logits.shape)}")
    check_options("cross_entropy", target, label_smoothing, reduction)
    if target.shape != logits.shape[:-1]:
        raise ValueError(
            f"cross_entropy: expected target of shape {tuple(logits.shape[:-1])} for logits"
            f" {tuple(logits.shape)}, got {tuple(target.shape)}; the classes are the last dimension of logits"
        )


def check_options(op: str, target: Tensor, label_smoothing: float, reduction: str) -> None:
    """What the losses of class numbers share."""
    if target.dtype != torch.int64:
        raise ValueError(
            f"{op}: expected int64 class numbers as target, got {target.dtype};"
            " convert with target.long(), and use torch's own cross_entropy for class probabilities"
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{op}: expected label_smoothing in [0, 1], got {label_smoothing}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{op}: expected reduction to be one of {', '.join(REDUCTIONS)}, got {reduction!r}")


def _check_range(target: Tensor, classes: int, ignore_index: int) -> None:
    bad = (target != ignore_index) & ((target < 0) | (target >= classes))
    if bad.any():
        raise _out_of_range(target, int(bad.flatten().nonzero()[0]), classes, ignore_index)


def _out_of_range(target: Tensor, row: int, classes: int, ignore_index: int) -> IndexError:
    return IndexError(
        f"cross_entropy: expected targets in [0, {classes}) or ignore_index {ignore_index}, got"
        f" {target.flatten()[row].item()} in row {row}; check the labels against the number of classes"
    )

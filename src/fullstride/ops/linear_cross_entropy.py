"""The head of a language model and its loss in one, without ever holding all logits.

    logits = hidden W^T + bias
    loss = cross_entropy(logits, target)
    dhidden = dlogits W,   dW = dlogits^T hidden,   dbias = sum of dlogits over the rows

Rows are taken in chunks: product, loss, gradient of the logits over the logits themselves, then its two products, all
in forward. Backward has nothing to do but to multiply by the incoming gradient, if that is not 1. For reduction="none"
the weights of the rows are known in backward only: the logits are computed a second time there.

Rows whose target is ignore_index are left out of every product, so that a masked language model pays for its masked
tokens only. They have loss 0 and gradient 0, even if hidden is not finite there.
"""

import ctypes
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native
from ._kept_gradients import empty_gradient
from ._tensors import kernel_dtype, needs_grad, takes_kernel
from ._twice import by_torch_for_graphs, gradients_of
from .cross_entropy import _check_range, check_options, cross_entropy_reference
from .gemm import gemm
from .products import biased_product, name_of, product

# A chunk reads W twice and dW once from memory, and that alone sets its size: the loss is 1 % of the time, whether its
# rows are in the cache or not. 1024 x 768 x 32000 fp32 on one core of an AMD EPYC (AVX2, 32 MiB L3), best of 3:
# 64 rows 2.44 s, 128 (half the L3) 2.16, 256 (all of it) 2.06, 512 2.01, 1024 2.08 (1.98 in another run).
CHUNK_ROWS = 512


class Gradients(NamedTuple):
    """In fp32 whatever the tensors are; None where nobody asked."""

    dhidden: Tensor | None
    dweight: Tensor | None
    dbias: Tensor | None

    def times(self, factor: float | Tensor) -> "Gradients":
        """Multiplied in place."""
        for gradient in self:
            if gradient is not None:
                gradient.mul_(factor)
        return self


class Options(NamedTuple):
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0


def linear_cross_entropy_reference(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    return cross_entropy_reference(logits, target, ignore_index, label_smoothing, reduction)


# ---- products ----------------------------------------------------------------------------------------------------


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """hidden W^T + bias, in `out` where the backend can. hidden: [rows, features]"""
    name = name_of(hidden, weight.t())
    if name == "native":
        return gemm(hidden, weight.t(), out, bias=bias)
    if name == "torch" and out is not None:
        return torch.mm(hidden, weight.t(), out=out) if bias is None else torch.addmm(bias, hidden, weight.t(), out=out)
    return biased_product(hidden, weight.t(), bias, "none")


def _store_product(a: Tensor, b: Tensor, out: Tensor, accumulate: bool = False, sums_rows: bool = False) -> None:
    """out = a b, or out + a b."""
    name = name_of(a, b, sums_rows)
    if name == "native":
        gemm(a, b, out, accumulate=accumulate)
    elif name == "torch" and out.dtype is a.dtype:
        torch.addmm(out, a, b, beta=int(accumulate), out=out)
    elif accumulate:
        out.add_(product(a, b, sums_rows=sums_rows))
    else:
        out.copy_(product(a, b, sums_rows=sums_rows))


# ---- one pass over the rows --------------------------------------------------------------------------------------


def run(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    options: Options,
    needs: tuple[bool, bool, bool] = (False, False, False),
    row_factors: Tensor | None = None,
) -> tuple[Tensor, Gradients]:
    """The loss, and the gradients of hidden [rows, features], weight and bias where `needs` says so.

    row_factors: what the gradient of each row's loss is multiplied by, for reduction="none".
    """
    _check_range(target, len(weight), options.ignore_index)
    rows = len(target)
    valid = (target != options.ignore_index).nonzero().squeeze(1)
    if len(valid) < rows:
        hidden, target = hidden.index_select(0, valid), target.index_select(0, valid)
        row_factors = None if row_factors is None else row_factors.index_select(0, valid)
    losses, total, gradients = _chunks(
        hidden.contiguous(), weight, bias, target.contiguous(), options, needs, row_factors
    )
    if len(valid) < rows:
        losses = losses.new_zeros(rows).index_copy_(0, valid, losses)
        if gradients.dhidden is not None:
            wide = gradients.dhidden.new_zeros(rows, hidden.shape[1]).index_copy_(0, valid, gradients.dhidden)
            gradients = gradients._replace(dhidden=wide)
    if options.reduction == "none":
        return losses, gradients
    if options.reduction == "mean":
        total = total / len(valid) if len(valid) else float("nan")
    return hidden.new_full((), total, dtype=torch.float32), gradients


def _chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    options: Options,
    needs: tuple[bool, bool, bool],
    row_factors: Tensor | None,
) -> tuple[Tensor, float, Gradients]:
    """Losses, their sum and the gradients, with no row ignored."""
    (rows, features), classes = hidden.shape, len(weight)
    num_chunks = max(1, -(-rows // CHUNK_ROWS))
    step = max(1, -(-rows // num_chunks))
    buffer = hidden.new_empty(step, classes)
    losses = hidden.new_empty(rows, dtype=torch.float32)
    # The mean's 1 / rows goes into hidden and dhidden, which are small; in bf16 that would round once more.
    scale = 1 / max(1, rows) if options.reduction == "mean" else 1.0
    early = scale == 1 or hidden.dtype is torch.float32
    scaled = hidden * scale if early and scale != 1 and needs[1] else hidden
    dhidden = hidden.new_empty(rows, features, dtype=torch.float32) if needs[0] else None
    dweight = empty_gradient(weight, (classes, features), torch.float32) if needs[1] else None
    if dweight is not None and rows == 0:
        dweight.zero_()
    dbias = hidden.new_zeros(classes, dtype=torch.float32) if needs[2] else None
    total = 0.0
    for begin in range(0, rows, step):
        end = min(rows, begin + step)
        logits = logits_of(hidden[begin:end], weight, bias, buffer[: end - begin])
        total += _losses_(logits, target[begin:end], losses[begin:end], options, any(needs))
        if row_factors is not None:
            _scale_(logits, row_factors[begin:end])
        if dhidden is not None:
            _store_product(logits, weight, dhidden[begin:end])
        if dweight is not None:
            _store_product(logits.t(), scaled[begin:end], dweight, accumulate=begin > 0, sums_rows=True)
        if dbias is not None:
            dbias += logits.sum(0, dtype=torch.float32)
    if scale != 1:
        Gradients(dhidden, None if early else dweight, dbias).times(scale)
    return losses, total, Gradients(dhidden, dweight, dbias)


def _losses_(logits: Tensor, target: Tensor, losses: Tensor, options: Options, gradient: bool) -> float:
    """Fills losses and returns their sum; the gradient, if wanted, overwrites the logits."""
    total, valid = ctypes.c_double(), (ctypes.c_int64 * 2)()
    _native.kernels.cross_entropy(
        logits.data_ptr(), target.data_ptr(), logits.data_ptr() if gradient else None, losses.data_ptr(),
        ctypes.addressof(total), ctypes.addressof(valid), *logits.shape, options.ignore_index,
        options.label_smoothing, False, kernel_dtype(logits),
    )  # fmt: skip
    return total.value


def _scale_(dlogits: Tensor, factors: Tensor) -> None:
    """Each row by its factor."""
    address = dlogits.data_ptr()
    _native.kernels.cross_entropy_scale(address, factors.data_ptr(), 1, address, *dlogits.shape, kernel_dtype(dlogits))


def dlogits_of(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, options: Options, dloss: Tensor
) -> Tensor:
    """The whole gradient of the logits, [rows, classes], for whoever wants to see it."""
    target = target.contiguous()
    logits = logits_of(hidden.contiguous(), weight, bias)
    _losses_(logits, target, logits.new_empty(len(target), dtype=torch.float32), options, True)
    factors = dloss.float().expand(len(target))
    if options.reduction == "mean":
        factors = factors / (target != options.ignore_index).sum().clamp(min=1)
    _scale_(logits, factors.contiguous())
    return logits


# ---- autograd ----------------------------------------------------------------------------------------------------

Saved: TypeAlias = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""hidden, weight, bias, target"""


def fused_forward(ctx: Any, inputs: Saved, options: Options, needs: tuple[bool, bool, bool], *more: Tensor) -> Tensor:
    """The loss, for the forward of a Function; more: what it saves beside the inputs."""
    late = options.reduction == "none"
    loss, gradients = run(*inputs, options, (False, False, False) if late else needs)
    ctx.save_for_backward(*inputs, *more)
    ctx.options, ctx.needs, ctx.kept = options, needs, None if late else gradients
    return loss


def fused_backward(ctx: Any, inputs: Saved, dloss: Tensor) -> Gradients:
    """inputs: ctx.saved_tensors, which torch.utils.checkpoint lets nobody ask for twice"""
    if ctx.options.reduction == "none":
        return run(*inputs, ctx.options, ctx.needs, dloss.float().contiguous())[1]
    gradients, ctx.kept = ctx.kept, None  # given away once: autograd then owns them and need not copy
    if gradients is None:  # a second pass over a retained graph
        gradients = run(*inputs, ctx.options, ctx.needs)[1]
    factor = dloss.item()
    return gradients if factor == 1 else gradients.times(factor)


def _by_torch(ctx, dloss):  # type: ignore[no-untyped-def]
    hidden, weight, bias, target = ctx.saved_tensors

    def function(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear_cross_entropy_reference(hidden, weight, target, bias, *ctx.options)

    return *gradients_of(function, [hidden, weight, bias], dloss, ctx.needs), None, None


class LinearCrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, target, options):  # type: ignore[no-untyped-def]
        return fused_forward(ctx, (hidden, weight, bias, target), options, tuple(ctx.needs_input_grad[:3]))

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dloss):  # type: ignore[no-untyped-def]
        # Autograd rounds an fp32 gradient to the dtype of its tensor, unless that one's grad_dtype allows fp32.
        return *fused_backward(ctx, ctx.saved_tensors, dloss), None, None


def follow_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """As F.linear takes them."""
    if not torch.is_autocast_enabled("cpu") or not hidden.is_cpu or hidden.dtype is torch.float64:
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype("cpu")
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss in fp32 of hidden [..., features] through weight [classes, features] for int64 targets [...].

    Follows torch.autocast as F.linear does. backward() can be repeated with retain_graph=True.
    """
    _check(hidden, weight, target, bias, label_smoothing, reduction)
    options = Options(ignore_index, reduction, label_smoothing)
    hidden, weight, bias = follow_autocast(hidden, weight, bias)
    if not takes_kernel(hidden, weight, bias) or not target.is_cpu:
        if not torch.compiler.is_compiling():
            _check_range(target, len(weight), ignore_index)
        return linear_cross_entropy_reference(hidden, weight, target, bias, *options)
    rows = hidden.reshape(-1, hidden.shape[-1])
    if needs_grad(hidden, weight, bias):
        loss = LinearCrossEntropyFunction.apply(rows, weight, bias, target.reshape(-1), options)
    else:
        loss, _ = run(rows, weight, bias, target.reshape(-1), options)
    return loss.view(target.shape) if reduction == "none" else loss


def _check(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, label_smoothing: float, reduction: str
) -> None:
    if weight.dim() != 2 or hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1] or len(weight) == 0:
        raise ValueError(
            "linear_cross_entropy: expected hidden [..., features] and weight [classes, features] with classes >= 1,"
            f" got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"linear_cross_entropy: expected bias of {len(weight)} classes, got {tuple(bias.shape)}")
    check_options("linear_cross_entropy", target, label_smoothing, reduction)
    if target.shape != hidden.shape[:-1]:
        raise ValueError(
            f"linear_cross_entropy: expected target of shape {tuple(hidden.shape[:-1])} for hidden"
            f" {tuple(hidden.shape)}, got {tuple(target.shape)}"
        )

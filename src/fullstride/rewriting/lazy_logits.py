"""Logits that are computed only if somebody looks at them, so that ordinary code gets the fused head and loss.

    logits = lazy_linear(hidden, weight)                       # a tensor of the right shape, with no values yet
    loss = F.cross_entropy(logits.view(-1, V), y.view(-1))     # by ops.linear_cross_entropy
    accuracy = (logits.argmax(-1) == y).float().mean()         # computes them now

LazyLogits are an ordinary node of the autograd graph. Views, slices and casts that leave the classes alone give lazy
logits again, so the gradient goes back through the very nodes that torch would have made. What travels there is a
LazyGradient: it carries dhidden, dweight and dbias, which the loss has computed already, in place of the rows x classes
that nobody needs to see. Whatever does look (a hook, a sum with another gradient, any operation that lazy_tensor.py
does not list) gets the real values. So hooks, retain_grad, several losses and custom Functions work as ever.

The values are those of the moment the logits were made: before an optimizer changes the weight, logits that are still
alive and have not been computed keep a copy of it (install()). After any other change in place, looking raises.
Differentiating twice raises, too: the fused loss has no second derivative. The loss is fp32, also where torch would
round it to bf16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from ..ops._products import product
from ..ops._tensors import needs_grad, takes_kernel
from ..ops._tied_gradients import give
from ..ops.cross_entropy import REDUCTIONS, cross_entropy
from ..ops.linear import linear
from ..ops.linear_cross_entropy import KeptGradients, Options, dlogits_of, refuse_create_graph, run
from .class_swap import foreign
from .lazy_tensor import Head, LazyGradient, LazyLogits, Uses, dense

__all__ = ["MIN_CLASSES", "MIN_RATIO", "LazyHead", "LazyLogits", "install", "is_large", "lazy_linear", "wants_lazy"]

MIN_CLASSES = 4096
"""With fewer, the logits are no large part of a step, and the layer may be anything."""
MIN_RATIO = 6
"""Classes to features. Layers inside of a model widen by 4, gated ones by 5.4; language-model heads by 6 or more."""


_given_away = WeakTensorKeyDictionary()
"""Weight gradients that have become somebody's p.grad, which is added to."""


class LazyLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(hidden, weight)
        head = Head(weight, bias, ctx.needs_input_grad)
        like = hidden.new_empty((*hidden.shape[:-1], len(weight)), device="meta")
        return LazyLogits.make(head, like, hidden.detach(), hidden.dim() - 1)

    @staticmethod
    def backward(ctx, dlogits):  # type: ignore[no-untyped-def]
        hidden, weight = ctx.saved_tensors
        if isinstance(dlogits, LazyGradient):
            dweight = dlogits.dweight
            if not dlogits.is_computed() and dweight not in _given_away:  # or somebody may have changed the values
                dhidden = None if dlogits.rows is None else dlogits.rows.movedim(dlogits.classes_at, -1)
                if dweight is not None and give(ctx.next_functions[1][0], dweight):
                    _given_away[dweight] = True
                    dweight = None
                return dhidden, dweight, dlogits.dbias
            dlogits = dlogits.computed()
        dlogits = dlogits.to(hidden.dtype).reshape(-1, len(weight))
        rows = hidden.reshape(-1, hidden.shape[-1])
        times = torch.mm if torch.is_grad_enabled() else product  # with create_graph=True this is differentiated, too
        dhidden = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dhidden = times(dlogits, weight).view(hidden.shape)
        if ctx.needs_input_grad[1]:
            dweight = times(dlogits.t(), rows)
        if ctx.needs_input_grad[2]:
            dbias = dlogits.sum(0, dtype=torch.float32)
        return dhidden, dweight, dbias


class LazyCrossEntropyFunction(torch.autograd.Function):
    """The loss of lazy logits [rows, classes]; rows, weight and bias are what those are made of."""

    @staticmethod
    def forward(ctx, logits, rows, weight, bias, target, options, needs):  # type: ignore[no-untyped-def]
        nothing = (False, False, False)
        ctx.needs = needs if ctx.needs_input_grad[0] else nothing
        late = options.reduction == "none"
        loss, gradients = run(rows, weight, bias, target, options, nothing if late else ctx.needs)
        ctx.save_for_backward(rows, weight, bias, target)
        ctx.kept = KeptGradients(None if late else gradients)
        ctx.options, ctx.dtype = options, logits.dtype
        return loss

    @staticmethod
    def backward(ctx, dloss):  # type: ignore[no-untyped-def]
        refuse_create_graph()
        rows, weight, bias, target = ctx.saved_tensors
        gradients = ctx.kept.take((rows, weight, bias, target), ctx.options, ctx.needs, dloss)
        head, options, dtype = Head(weight, bias, ctx.needs), ctx.options, ctx.dtype

        def compute() -> Tensor:
            return dlogits_of(rows, *head.get(), target, options, dloss).to(dtype)

        like = rows.new_empty((len(rows), len(weight)), dtype=dtype, device="meta")
        return LazyGradient.make(like, gradients, 1, compute), None, None, None, None, None, None


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """torch.nn.functional.cross_entropy of lazy logits, or NotImplemented: then torch does it with their values."""
    if not isinstance(input, LazyLogits) or type(target) is not Tensor or weight is not None:
        return NotImplemented
    if size_average is not None or reduce is not None or target.dtype is not torch.int64 or not target.is_cpu:
        return NotImplemented
    at = min(1, input.dim() - 1)  # where torch has the classes
    if input.classes_at != at or target.shape != input.shape[:at] + input.shape[at + 1 :]:
        return NotImplemented
    if not 0 <= label_smoothing <= 1 or reduction not in REDUCTIONS or not takes_kernel(input.rows):
        return NotImplemented
    logits, labels = input.movedim(at, -1).reshape(-1, input.shape[at]), target.reshape(-1)
    if not isinstance(logits, LazyLogits) or input.is_computed():
        loss = cross_entropy(dense(logits), labels, ignore_index, label_smoothing, reduction)
    else:
        options = Options(ignore_index, reduction, label_smoothing)
        head = logits.head
        loss = LazyCrossEntropyFunction.apply(logits, logits.rows, *head.get(), labels, options, head.needs)
    return loss.view(target.shape) if reduction == "none" else loss


LazyLogits.functions = {F.cross_entropy: _cross_entropy}


@dataclass
class _Past:
    """What became of the lazy logits of a weight."""

    num_made: int = 0
    num_computed: int = 0
    last: Uses | None = None

    def add(self, uses: Uses) -> None:
        self.num_made += 1
        self.num_computed += self.last is not None and self.last.num_computed > 0
        self.last = uses


_pasts = WeakTensorKeyDictionary()


def lazy_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear(hidden, weight, bias), lazy where autograd records it and the kernels take these tensors."""
    if not needs_grad(hidden, weight, bias):
        return linear(hidden, weight, bias)
    past = _pasts.setdefault(weight, _Past())
    if torch.is_autocast_enabled("cpu") and hidden.is_cpu and hidden.dtype is not torch.float64:
        dtype = torch.get_autocast_dtype("cpu")
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if not takes_kernel(hidden, weight, bias):
        return linear(hidden, weight, bias)
    logits = LazyLinearFunction.apply(hidden, weight, bias)
    past.add(logits.head.uses)
    return logits


# ---- the head ----------------------------------------------------------------------------------------------------


class LazyHead(torch.nn.Linear):
    """The form of torch.nn.Linear for a head with many classes."""

    def forward(self, input: Tensor) -> Tensor:
        forward = lazy_linear if wants_lazy(self, input) else linear
        return forward(input, self.weight, self.bias)


def is_large(module: torch.nn.Linear) -> bool:
    """Whether its output is likely to go into a cross-entropy and to be worth not computing."""
    return module.out_features >= max(MIN_CLASSES, MIN_RATIO * module.in_features)


def replace(module: torch.nn.Module) -> tuple[str, str]:
    """(done, left); both empty for anything but a large linear layer."""
    if type(module) is not torch.nn.Linear or not is_large(module):
        return "", ""
    why_not = foreign(module)
    if why_not:
        return "", why_not
    module.__class__ = LazyHead
    return "fullstride.rewriting.LazyHead: logits only if somebody looks", ""


def put_back(module: torch.nn.Module) -> None:
    if type(module) is LazyHead:
        module.__class__ = torch.nn.Linear  # type: ignore[assignment]


def wants_lazy(module: torch.nn.Linear, x: Tensor) -> bool:
    """Whether nobody needs the values of this call at once.

    After a few steps the past decides: where somebody looks at the logits anyway, computing them late only costs.
    """
    if not (torch.is_grad_enabled() and module.training and takes_kernel(x)):
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    past = _pasts.get(module.weight)
    return past is None or past.num_computed < 3 or 2 * past.num_computed < past.num_made


def install() -> Callable[[], None]:
    """From now on logits outlive the step of an optimizer. Returns what undoes it; then a late look raises."""
    return register_optimizer_step_pre_hook(_keep_weights).remove


def _keep_weights(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    heads = [head for head in Head.alive if head.uses.num_computed < head.uses.num_made]
    if heads:
        addresses = {p.data_ptr() for group in optimizer.param_groups for p in group["params"]}
        for head in heads:
            head.keep(addresses)

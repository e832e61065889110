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
Where the gradient is to be differentiated (create_graph=True), the loss is torch's, of the values. The loss is fp32,
also where torch would round it to bf16.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from ..ops._leaf_gradients import is_watched_by_others
from ..ops._tensors import needs_grad, takes_kernel
from ..ops._tied_gradients import give
from ..ops._twice import add, by_torch_for_graphs, gradients_of, placed, stand_in
from ..ops.cross_entropy import REDUCTIONS, cross_entropy, cross_entropy_reference
from ..ops.linear import linear
from ..ops.linear_cross_entropy import Options, dlogits_of, follow_autocast, fused_backward, fused_forward, logits_of
from ..ops.products import product
from .class_swap import foreign
from .lazy_tensor import FUNCTIONS, Call, Inputs, LazyGradient, LazyLogits, Memory, dense
from .mechanisms import Answer

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
        ctx.call = Call(ctx.needs_input_grad)
        form = hidden.new_empty((*hidden.shape[:-1], len(weight)), device="meta")
        inputs = Inputs(hidden, weight, bias, ctx.call)

        def fill() -> Tensor:
            rows, weight, bias = inputs.get()
            inputs.call.is_computed = True
            return logits_of(rows.reshape(-1, rows.shape[-1]), weight, bias).view(form.shape)

        return LazyLogits(form, (hidden.detach(),), hidden.dim() - 1, Memory(inputs, fill))

    @staticmethod
    def backward(ctx, dlogits):  # type: ignore[no-untyped-def]
        hidden, weight = ctx.saved_tensors
        if isinstance(dlogits, LazyGradient):
            dhidden, dweight, dbias = (None if x.is_meta else x for x in dlogits.parts)
            is_ours = dlogits.memory.inputs.call is ctx.call
            if is_ours and not dlogits.is_computed() and dweight not in _given_away:  # or values or parts have changed
                if dweight is not None and dweight.dtype is not weight.dtype and is_watched_by_others():
                    dweight = dweight.to(weight.dtype)  # DDP refuses others
                if dweight is not None and give(ctx.next_functions[1][0], dweight):
                    _given_away[dweight] = True
                    dweight = None
                return dhidden, dweight, dbias
            dlogits = dlogits.computed()
        dlogits = dlogits.to(hidden.dtype).reshape(-1, len(weight))
        rows = hidden.reshape(-1, hidden.shape[-1])
        times = torch.mm if torch.is_grad_enabled() else product  # with create_graph=True this is differentiated, too
        dhidden = times(dlogits, weight).view(hidden.shape) if ctx.needs_input_grad[0] else None
        dweight = times(dlogits.t(), rows) if ctx.needs_input_grad[1] else None
        dbias = dlogits.sum(0, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        return dhidden, dweight, dbias


def _by_torch(ctx, dloss, dplace):  # type: ignore[no-untyped-def]
    rows, weight, bias, target, place = ctx.saved_tensors
    if dloss is None:
        return dplace, None, None

    def function(logits: Tensor) -> Tensor:
        return cross_entropy_reference(logits, target, **ctx.options._asdict())

    with torch.no_grad():
        values = logits_of(rows, weight, bias)
    (dlogits,) = gradients_of(function, [placed(place, values)], dloss, [True])
    return add(dlogits.to(ctx.dtype), dplace), None, None


class LazyCrossEntropyFunction(torch.autograd.Function):
    """ops.linear_cross_entropy, with the logits [rows, classes] in the graph in place of what they are made of."""

    @staticmethod
    def forward(ctx, logits, target, options):  # type: ignore[no-untyped-def]
        inputs = logits.memory.inputs
        _, weight, bias = inputs.get()
        ctx.call, ctx.dtype = inputs.call, logits.dtype
        needs = inputs.call.needs if ctx.needs_input_grad[0] else (False, False, False)
        place = stand_in(logits)
        ctx.set_materialize_grads(False)
        return fused_forward(ctx, (logits.parts[0], weight, bias, target), options, needs, place), place

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dloss, dplace):  # type: ignore[no-untyped-def]
        if dloss is None:  # the second derivative alone
            return dplace, None, None
        rows, weight, bias, target, _ = ctx.saved_tensors
        gradients = fused_backward(ctx, (rows, weight, bias, target), dloss)
        inputs, options, dtype = Inputs(rows, weight, bias, ctx.call), ctx.options, ctx.dtype

        def fill() -> Tensor:
            return dlogits_of(*inputs.get(), target, options, dloss).to(dtype)

        sizes = (rows.shape, (), ())  # the rows follow views, even if nobody wants them
        form = rows.new_empty((len(rows), len(weight)), dtype=dtype, device="meta")
        parts = (rows.new_empty(n, device="meta") if x is None else x for n, x in zip(sizes, gradients, strict=True))
        return add(LazyGradient(form, tuple(parts), 1, Memory(inputs, fill)), dplace), None, None


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
    if not 0 <= label_smoothing <= 1 or reduction not in REDUCTIONS or not takes_kernel(*input.parts):
        return NotImplemented
    logits, labels = input.movedim(at, -1).reshape(-1, input.shape[at]), target.reshape(-1)
    if not isinstance(logits, LazyLogits) or input.is_computed():
        loss = cross_entropy(dense(logits), labels, ignore_index, label_smoothing, reduction)
    else:
        loss, _ = LazyCrossEntropyFunction.apply(logits, labels, Options(ignore_index, reduction, label_smoothing))
    return loss.view(target.shape) if reduction == "none" else loss


FUNCTIONS[F.cross_entropy] = _cross_entropy


@dataclass
class _Past:
    """What became of the logits of a weight."""

    num_made: int = 0
    num_computed: int = 0  # of all but the last, at which somebody may still look
    last: Call | None = None

    def add(self, call: Call) -> None:
        self.num_made += 1
        self.num_computed += self.last is not None and self.last.is_computed
        self.last = call


_pasts = WeakTensorKeyDictionary()


def lazy_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear(hidden, weight, bias), lazy where autograd records it and the kernels take these tensors."""
    if not needs_grad(hidden, weight, bias):
        return linear(hidden, weight, bias)
    past = _pasts.setdefault(weight, _Past())
    hidden, weight, bias = follow_autocast(hidden, weight, bias)
    if not takes_kernel(hidden, weight, bias):
        return linear(hidden, weight, bias)
    logits = LazyLinearFunction.apply(hidden, weight, bias)
    past.add(logits.memory.inputs.call)
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


def replace(module: torch.nn.Module, without: Collection[str] = ()) -> Answer:
    """Empty for anything but a large linear layer. It is no part of anything: it has a mechanism of its own."""
    if type(module) is not torch.nn.Linear or not is_large(module):
        return Answer()
    why_not = foreign(module)
    if why_not:
        return Answer(left=why_not)
    module.__class__ = LazyHead
    return Answer("fullstride.rewriting.lazy_logits.LazyHead: logits only if somebody looks")


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
    waiting = [memory for memory in Memory.alive if memory.values is None]
    if waiting:
        addresses = {p.data_ptr() for group in optimizer.param_groups for p in group["params"]}
        for memory in waiting:
            memory.inputs.keep(addresses)

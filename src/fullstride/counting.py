"""FLOPs of any model, forward and backward: counted from what one batch makes torch compute.

    counted = fullstride.flops(model, inputs)        # counted.forward, .backward, .total

The batch goes through a copy of the model whose tensors have shapes and no values (torch's FakeTensor), so it takes
neither the memory nor the time of a step, and leaves no trace in the model. Where code looks at values, it is done once
more with values. What counts, an addition and a multiplication as two:

    products        2 m k n, whoever writes them: linear layers, matmul, einsum, LSTM and GRU; a weight that is used
                    twice counts twice
    convolutions    2 a weight and place of the output, or of the input if transposed; padding counts as pixels do
    attention       2 products forward, 4 backward: what a kernel computes again does not count. Of a causal call
                    (is_causal=True) half the square; the other half stands in `masked`
    embeddings      a look-up is none; backward adds 1 an element, as forward does where an EmbeddingBag sums
    backward        dW where the weight learns, dx where something before it does: none for the batch itself
    checkpoints     what torch.utils.checkpoint computes again counts: it is computed

torch.utils.flop_counter says the same of products, convolutions without groups, and attention in plain torch, but for
`masked`, which it counts, and embeddings, which it does not. What is element by element counts nowhere.
"""

import contextlib
import copy
import math
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")
_aten = torch.ops.aten
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Flops:
    """Of one batch. forward + backward = products + convolutions + attention + embeddings."""

    forward: int
    backward: int
    products: int
    convolutions: int
    attention: int
    embeddings: int
    masked: int  # of causal attention, not in the others

    @property
    def total(self) -> int:
        return self.forward + self.backward


def flops(model: nn.Module, *inputs: Any, **named_inputs: Any) -> Flops:
    """Of model(*inputs, **named_inputs) and backward from its loss, or from whatever it gives, if it gives none."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected an nn.Module, got {type(model).__name__}")
    return flops_of(model, lambda twin, batch: twin(*batch[0], **batch[1]), (inputs, named_inputs))


def flops_of(model: nn.Module, call: Callable[[nn.Module, Any], Any], batch: Any) -> Flops:
    """The same of call(model, batch). A ValueError says why they cannot be counted."""
    return watched(model, batch, lambda twin, inputs: _counted(twin, call, inputs))


def watched(model: nn.Module, batch: Any, watch: Callable[[nn.Module, Any], T], who: str = "flops") -> T:
    """watch(twin, inputs), a copy of the model and of the batch without values, or with them where code looks at them.

    For whoever counts what a batch makes torch compute; `who` is named in the ValueError if it cannot be.
    """
    if any("_preparation" in module.__dict__ for module in model.modules()):
        raise ValueError(
            f"{who}: expected a plain model, got a prepared one; count before prepare() or after restore()"
        )
    with _nothing_changed(model):
        try:
            return _without_values(model, batch, watch)
        except Exception:  # of any kind: it is the code of others that meets tensors without values
            pass
        try:
            return _with_values(model, batch, watch)
        except Exception as error:
            why = (str(error).strip().splitlines() or ["it said nothing"])[0]
            name = type(error).__name__
            raise ValueError(f"{who}: the batch does not go through the model: {name}: {why}") from error


# ---- the run that is counted -----------------------------------------------------------------------------------------


def _without_values(model: nn.Module, batch: Any, watch: Callable[[nn.Module, Any], T]) -> T:
    from torch._subclasses.fake_tensor import FakeTensorMode  # 0.1 s that only those who count pay

    def stand_in(tensor: Tensor) -> Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)  # on the CPU, also for meta

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin, inputs = _twin(model, stand_in), _mapped(batch, stand_in)
    with mode:
        return watch(twin, inputs)


def _with_values(model: nn.Module, batch: Any, watch: Callable[[nn.Module, Any], T]) -> T:
    """Takes the time and memory of a forward and a backward pass. Parameters are shared, all else is copied."""

    def stand_in(tensor: Tensor) -> Tensor:
        return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()

    return watch(_twin(model, stand_in), _mapped(batch, stand_in))


def _counted(twin: nn.Module, call: Callable[[nn.Module, Any], Any], batch: Any) -> Flops:
    counter = _Counter()
    with torch.enable_grad(), _PlainAttention(), counter:
        outputs = roots(call(twin, batch))
        counter.is_backward = True
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    return counter.result()


def roots(output: Any) -> list[Tensor]:
    """What backward starts from: a loss, if there is one."""
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    leaves = [loss] if isinstance(loss, Tensor) else tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]


def _twin(model: nn.Module, stand_in: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy with other tensors and without the user's hooks: only those with which torch makes weights stay."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        own = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        for tensor in own:
            if isinstance(tensor, nn.Parameter):
                memo[id(tensor)] = nn.Parameter(stand_in(tensor), tensor.requires_grad)
            elif isinstance(tensor, Tensor):
                memo[id(tensor)] = stand_in(tensor)
    for module in model.modules():
        for name in _HOOKS:
            hooks = vars(module)[name]
            kept = {key: hook for key, hook in hooks.items() if type(hook).__module__.startswith("torch.nn.utils.")}
            memo[id(hooks)] = OrderedDict((key, copy.deepcopy(hook, memo)) for key, hook in kept.items())
    return copy.deepcopy(model, memo)


def _mapped(batch: Any, stand_in: Callable[[Tensor], Tensor]) -> Any:
    def leaf(value: Any) -> Any:
        return stand_in(value).requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value

    return tree_map(leaf, batch)


@contextlib.contextmanager
def _nothing_changed(model: nn.Module) -> Iterator[None]:
    """Random numbers and gradients are as they were. oneDNN's LSTM and the fast path of encoders count as products."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the old one, which code of others draws from
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, of_numpy)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # they come again when the model is trained
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # what was compiled runs as it was written
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


# ---- counting --------------------------------------------------------------------------------------------------------


class _PlainAttention(TorchFunctionMode):
    """Dropout in attention makes torch take another way, on which nobody sees that it is causal."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is nn.functional.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs |= {"dropout_p": 0.0} if "dropout_p" in kwargs else {}
        return func(*args, **kwargs)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.is_backward = False
        self._masked = 0
        self._counts = {(kind, when): 0 for kind in _KINDS for when in (False, True)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = _count(func.overloadpacket, args, out)
        if found is not None:
            kind, count, masked = found
            self._counts[kind, self.is_backward] += count
            self._masked += masked
        return out

    def result(self) -> Flops:
        of_kind = {kind: self._counts[kind, False] + self._counts[kind, True] for kind in _KINDS}
        forward, backward = (sum(self._counts[kind, when] for kind in _KINDS) for when in (False, True))
        return Flops(forward, backward, **of_kind, masked=self._masked)


def _product(a: Tensor, b: Tensor) -> int:
    """(..., m, k) by (..., k, n) or by (k)."""
    return 2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1)


def convolution_flops(x: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    """weight (out, in / groups, ...), transposed (in, out / groups, ...)."""
    return 2 * (x if transposed else out).numel() * (weight.numel() // max(1, weight.shape[0]))


def _convolution_backward(args: Any, _: Any) -> int:
    dout, x, weight, transposed, (dx, dweight, _) = args[0], args[1], args[2], args[7], args[10]
    return (dx + dweight) * convolution_flops(x, weight, dout, transposed)


def attention_flops(query: Tensor, key: Tensor, value: Tensor) -> int:
    """query (B, H, T, d), key (B, H or fewer, S, d), value (..., S, e): scores, and the mix of the values."""
    rows = math.prod(query.shape[:-1])
    return 2 * rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def flops_of_operation(operation: Any, args: Any, out: Any) -> int:
    """Of one operation of torch.ops.aten that was called with these arguments and gave this."""
    found = _count(operation, args, out)
    return 0 if found is None else found[1]


def _count(operation: Any, args: Any, out: Any) -> tuple[str, int, int] | None:
    """(kind, FLOPs, those of the masked half); None of what counts nowhere."""
    found = _FORMULAS.get(operation)
    if found is None:
        return None
    kind, formula, causal_at = found
    count = int(formula(args, out))
    is_causal = causal_at is not None and (*args, *[False] * causal_at)[causal_at]
    return (kind, count // 2, count - count // 2) if is_causal else (kind, count, 0)


_KINDS = ("products", "convolutions", "attention", "embeddings")
_FORMULAS: dict[Any, tuple[str, Callable[[Any, Any], float], int | None]] = {  # and the place of is_causal
    _aten.mm: ("products", lambda args, out: _product(*args[:2]), None),
    _aten.bmm: ("products", lambda args, out: _product(*args[:2]), None),
    _aten.mv: ("products", lambda args, out: _product(*args[:2]), None),
    _aten.dot: ("products", lambda args, out: _product(*args[:2]), None),
    _aten.addmm: ("products", lambda args, out: _product(*args[1:3]), None),
    _aten.baddbmm: ("products", lambda args, out: _product(*args[1:3]), None),
    _aten.addbmm: ("products", lambda args, out: _product(*args[1:3]), None),
    _aten.addmv: ("products", lambda args, out: _product(*args[1:3]), None),
    _aten.convolution: ("convolutions", lambda args, out: convolution_flops(args[0], args[1], out, args[6]), None),
    _aten.convolution_backward: ("convolutions", _convolution_backward, None),
    _aten._scaled_dot_product_flash_attention_for_cpu: ("attention", lambda args, out: attention_flops(*args[:3]), 4),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        "attention", lambda args, out: 2 * attention_flops(*args[1:4]), 7,
    ),
    _aten.embedding_dense_backward: ("embeddings", lambda args, out: args[0].numel(), None),
    _aten._embedding_bag: ("embeddings", lambda args, out: args[1].numel() * args[0].shape[-1], None),
    _aten._embedding_bag_backward: ("embeddings", lambda args, out: args[1].numel() * args[0].shape[-1], None),
}  # fmt: skip

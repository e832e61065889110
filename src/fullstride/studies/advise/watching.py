"""One micro-batch through a model without values, call by call, as the prepared model would compute it.

    counted = count(model, loss, batch, torch.bfloat16)

The plain model runs, forward and backward, on tensors that have shapes alone (counting.py). Functions that prepare()
answers by an op of ours become one Call each (functions.py says which, and what they are fused with); every other
operation is a Call as torch runs it. Weights that prepare() would split are bf16 here, and autocast is on inside.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from ... import counting
from ...rewriting.prepared_forward import to_fp32
from ...rewriting.probes import rms_norm, rotary
from .calls import Call, Counted, Form

_SPLIT = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # their weights, by rewriting/split_weights.py
_MATRICES = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addbmm", "addmv"}
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# They give a new name to memory, or ask for some that nobody has written to yet.
_FREE = re.compile(r"empty|detach|alias|_unsafe_view|lift_fresh|set_|resize|_local_scalar|_reshape_alias|is_|sym_")


def count(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any, dtype: torch.dtype | None = None
) -> Counted:
    """Of loss(model, batch) and backward from it. dtype: of autocast, None for fp32. ValueError: why it cannot be."""

    def watch(twin: nn.Module, inputs: Any) -> Counted:
        return Watch(dtype).run(twin, loss, inputs)

    return counting.watched(model, batch, watch, who="advise")


class Watch:
    """What was called so far, and which call made a tensor."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype
        self.calls: list[Call] = []
        self.num_asked = 0
        self.is_backward = False
        self.is_silent = False
        self.modules: list[tuple[nn.Module, str]] = []  # those that run, and their paths
        self.made: Any = WeakIdKeyDictionary()  # tensor -> the call whose result it is
        self.heads: Any = WeakIdKeyDictionary()  # logits that are not computed, and views of them -> the linear layer
        self.sums: Any = WeakIdKeyDictionary()  # tensor -> the addition, and the module whose code it stands in
        self.added: Any = WeakIdKeyDictionary()  # gradients that a fused norm adds to their neighbour by itself
        self.cast: Any = lambda: None  # the last tensor that a linear layer rounded, weakly

    def run(self, twin: nn.Module, loss: Callable[[nn.Module, Any], Any], batch: Any) -> Counted:
        if self.dtype is torch.bfloat16:
            _split(twin)
        for path, module in twin.named_modules():
            module.forward = self._around(module, re.sub(r"\b\d+\b", "*", path) or "(the model)")
        with torch.enable_grad(), _Operations(self):
            with _Functions(self):
                outputs = counting.roots(loss(twin, batch))
            self.is_backward = True
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        return Counted(tuple(call for call in self.calls if not call.is_absorbed), self.num_asked)

    def _around(self, module: nn.Module, path: str) -> Callable[..., Any]:
        """The module's forward; the outermost has autocast around it and gives fp32, as a prepared one does."""
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            self.modules.append((module, path))
            try:
                if len(self.modules) > 1:
                    return self._whole(forward, args, kwargs)
                if self.is_backward:  # a checkpoint, which brings its autocast and no modes
                    with _Functions(self):
                        return self._whole(forward, args, kwargs)
                with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
                    return to_fp32(self._whole(forward, args, kwargs))
            finally:
                self.modules.pop()

        return run

    def _whole(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module that prepare() replaces by one op is one call, whatever it is made of."""
        module = self.modules[-1][0]
        name = "rope" if rotary.looks_like(module) else "rms_norm" if rms_norm.looks_like(module) else None
        if name is None or type(module) is nn.RMSNorm or not args or kwargs:
            return forward(*args, **kwargs)
        call = self.call(name, {"x": args[0]})
        return self.stand_in(call, lambda x, *rest: torch.empty_like(x).copy_(forward(x, *rest)), args)

    @property
    def is_inside(self) -> bool:
        """Of a prepared forward, where our functions answer."""
        return bool(self.modules)

    @property
    def frame(self) -> nn.Module | None:
        """The innermost module of the user's own: whose code runs."""
        own = (module for module, _ in reversed(self.modules) if not type(module).__module__.startswith("torch.nn."))
        return next(own, None)

    @property
    def dtype_of_products(self) -> torch.dtype | None:
        return self.dtype if torch.is_autocast_enabled("cpu") else None

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        before, self.is_silent = self.is_silent, True
        try:
            yield
        finally:
            self.is_silent = before

    def call(self, name: str, inputs: dict[str, Any], **options: Any) -> Call:
        """Notes it, to be given to stand_in(). Inputs that are None are left out."""
        forms = {role: x if isinstance(x, Form) else Form.of(x) for role, x in inputs.items() if x is not None}
        call = Call(name, self.modules[-1][1] if self.modules else "-", forms, {}, options)
        self.calls.append(call)
        return call

    def stand_in(self, call: Call | None, func: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        """func(*args, **kwargs) as one node of the graph, whose operations are not looked at. None: costs nothing."""
        leaves, spec = tree_flatten((list(args), dict(kwargs or {})))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def run(*tensors: Tensor) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            given, named = tree_unflatten(filled, spec)
            return func(*given, **named)

        out = _StandIn.apply(self, call, run, *(leaves[place] for place in places))
        if call is not None and isinstance(out, Tensor):
            self.made[out] = call
        return out


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, watch, call, run, *tensors):  # type: ignore[no-untyped-def]
        with watch.silent():
            out = run(*tensors)
        if call is not None and isinstance(out, Tensor):  # here: a checkpoint may end with what is saved next
            call.outputs = {"y": Form.of(out)}
        ctx.save_for_backward(*tensors)
        ctx.watch, ctx.call = watch, call
        return out

    @staticmethod
    def backward(ctx, *_):  # type: ignore[no-untyped-def]
        needed, tensors = ctx.needs_input_grad[3:], ctx.saved_tensors  # asking for these runs checkpoints once more
        with ctx.watch.silent():
            pairs = zip(tensors, needed, strict=True)
            gradients = [torch.zeros_like(tensor) if wanted else None for tensor, wanted in pairs]
        if ctx.call is not None:
            ctx.watch.num_asked += 1
            roles = list(ctx.call.inputs)[: len(needed)]
            ctx.call.wants = frozenset(role for role, wanted in zip(roles, needed, strict=False) if wanted)
            if ctx.call.options.get("residual") and gradients[0] is not None:
                ctx.watch.added[gradients[0]] = True
        return None, None, None, *gradients


class _Functions(TorchFunctionMode):
    """Sees functions of torch as rewriting/function_mode.py does."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from .functions import answer

        return func(*args, **(kwargs or {})) if self.watch.is_silent else answer(self.watch, func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """Sees what is left: each operation of torch, with what it reads and writes."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.watch.is_silent and func.namespace == "aten":
            self.watch.num_asked += self.watch.is_backward  # forward is counted by function
            if not func.is_view and not _FREE.match(name := func.overloadpacket.__name__):
                _note(self.watch, name, func, args, kwargs or {}, out)
        return out


def _note(watch: Watch, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if name.startswith("add") and any(tensor in watch.added for tensor in tensors):
        return
    results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    call = watch.call(name, {f"x{i}": tensor for i, tensor in enumerate(tensors)})
    call.outputs = {f"y{i}": Form.of(tensor) for i, tensor in enumerate(results)}
    call.is_of_torch, call.is_backward = True, watch.is_backward
    call.flops = counting.flops_of_operation(func.overloadpacket, args, out)
    if name in _MATRICES:
        call.name, call.options = "matmul", {"operation": name}
    elif call.flops and name.startswith("convolution"):
        call.name, call.options = "convolution", {"operation": name}
    elif call.flops and name.startswith(_ATTENTION):
        call.name, call.options = "attention", {"operation": name}
    for tensor in results:
        watch.made[tensor] = call


def _split(twin: nn.Module) -> None:
    """Weights as prepare() leaves them in bf16; tied ones stay one."""
    done: dict[int, nn.Parameter] = {}
    for module in twin.modules():
        weight = module._parameters.get("weight") if type(module) in _SPLIT else None
        if weight is not None and weight.dtype is torch.float32:
            half = done.setdefault(id(weight), nn.Parameter(weight.detach().bfloat16(), weight.requires_grad))
            module._parameters["weight"] = half

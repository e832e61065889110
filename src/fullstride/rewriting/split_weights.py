"""Split weights of a model: bf16 in the parameter, the other half of the fp32 bits beside it in its module.

    weight.data            bf16 `hi`, what forward and backward use; the Parameter object stays the same
    module._split_lo       {"weight": int16 `lo`}, shared with the optimizer, which updates both

A weight is split where every module that owns it is known to use it in products or look-ups only. Saving and loading do
not notice: state_dict() gives the exact fp32 weights, load_state_dict() takes fp32 and splits it again. A copy of the
model, which no optimizer of ours steps, and one that is told its dtype (model.float()) have whole weights.
whole_weights.py is for those who read parameters() themselves.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..nn.conv1d import Conv1d
from ..nn.conv2d import Conv2d
from ..nn.embedding import Embedding
from ..nn.linear import Linear
from ..nn.multihead_attention import MultiheadAttention
from ..ops.convert import merge, split
from .class_swap import foreign
from .lazy_logits import LazyHead

_CONVOLUTIONS = (Conv1d, Conv2d, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def split_weights(model: nn.Module, plain: bool = False) -> dict[nn.Parameter, Tensor]:
    """Splits what can be split, in place. Returns the lower half of each such parameter.

    plain: also of torch's own linear layers, where those are to be left as they are.
    """
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    known: set[tuple[nn.Module, str]] = set()
    for module in model.modules():
        known.update(_known_weights(module))
        if plain and type(module) is nn.Linear and not foreign(module):
            known.add((module, "weight"))
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(parameter, []).append((module, name))
    lows = {}
    for parameter, places in owners.items():
        if parameter.dtype == torch.float32 and parameter.is_contiguous() and known.issuperset(places):
            hi, lo = split(parameter)
            parameter.data = hi
            lows[parameter] = lo
            for module, name in places:
                _attach(module, name, lo)
    return lows


def merge_weights(model: nn.Module) -> None:
    """Gives every split parameter its exact fp32 weight back, in place."""
    for module in model.modules():
        for _, parameter, lo in halves(module):
            _merge(parameter, lo)
        module.__dict__.pop("_split_lo", None)
        if isinstance(module.__dict__.get("_apply"), Apply):
            del module.__dict__["_apply"]
        for handle in module.__dict__.pop("_split_hooks", ()):
            handle.remove()


def _merge(parameter: nn.Parameter, lo: Tensor) -> None:
    gradient, parameter.grad = parameter.grad, None
    parameter.data = merge(parameter.data, lo)
    parameter.grad_dtype = torch.float32
    parameter.grad = None if gradient is None else gradient.float()
    lo.resize_(0)  # whoever else has it, a tied module or the optimizer, sees that it is no half of anything now


def is_split(module: nn.Module) -> bool:
    """Whether a weight of its own is split."""
    return any(True for _ in halves(module))


def num_split(model: nn.Module) -> int:
    return len({hi for module in model.modules() for _, hi, _ in halves(module)})


class LowerHalves(dict[str, Tensor]):
    """{name: lo} of a module. In a copy of it, pickled or deep, the parameters are whole and there are none."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __reduce__(self) -> Any:
        return _without_halves, ([(hi, lo) for _, hi, lo in halves(self.module)],)


def _without_halves(pairs: list[tuple[nn.Parameter, Tensor]]) -> dict[str, Tensor]:
    for parameter, lo in pairs:
        if parameter.dtype is torch.bfloat16:  # and not done by a tied module
            parameter.data = merge(parameter.data, lo)
            parameter.grad_dtype = torch.float32
    return {}


class Apply:
    """module._apply, which is behind float(), to(), double(), half() and others.

    A new dtype is that of whole weights, and so is a new order in memory, which halves do not have.

    An object of a class at module level, like PreparedForward.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        module = self.module
        lows: dict[str, Tensor] = module.__dict__["_split_lo"]
        if any(_dtype_by(fn, dtype) is not dtype for dtype in (torch.float32, torch.bfloat16)):
            for _, parameter, lo in halves(module):
                _merge(parameter, lo)
            lows.clear()  # so that whole_weights() does not split again what is whole at the moment
        else:  # moves it, or shares its memory
            for name, parameter, lo in list(halves(module)):
                if not fn(torch.zeros((2,) * lo.dim(), dtype=lo.dtype)).is_contiguous():  # channels_last
                    _merge(parameter, lo)
                    continue
                moved = fn(lo)
                if moved.device == lo.device:
                    lo.copy_(moved)  # the optimizer and tied modules have it, too
                else:
                    lows[name] = moved
        return type(module)._apply(module, fn, *args, **kwargs)


def _dtype_by(fn: Callable[[Tensor], Tensor], dtype: torch.dtype) -> torch.dtype:
    return fn(torch.zeros(1, dtype=dtype, device="cpu")).dtype


def _known_weights(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The weights that this module uses in products or look-ups, and nowhere else."""
    if type(module) in (Linear, LazyHead, Embedding, *_CONVOLUTIONS):
        yield module, "weight"
    elif type(module) is MultiheadAttention:
        yield module, "in_proj_weight"
        yield module.out_proj, "weight"
    elif type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        yield module, "weight"


def _attach(module: nn.Module, name: str, lo: Tensor) -> None:
    if not isinstance(module.__dict__.get("_split_lo"), LowerHalves):
        module.__dict__["_split_lo"] = LowerHalves(module)
        module.__dict__["_apply"] = Apply(module)
        module.__dict__["_split_hooks"] = (
            module.register_state_dict_post_hook(_save),
            module.register_load_state_dict_pre_hook(_load),
        )
    module.__dict__["_split_lo"][name] = lo


_Merged: TypeAlias = "weakref.WeakValueDictionary[tuple[int, int], Tensor]"
_last_save: tuple[Callable[[], Any], _Merged] = (lambda: None, weakref.WeakValueDictionary())


def _save(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Writes the fp32 weights into a state_dict. Tied weights share their memory there as they do in the model."""
    global _last_save
    if _last_save[0]() is not state:
        known = isinstance(state, OrderedDict)  # a plain dict, which the user passed, takes no weak reference
        _last_save = (weakref.ref(state) if known else lambda: None, weakref.WeakValueDictionary())
    for name, hi, lo in halves(module):
        if prefix + name not in state:
            continue
        key = (hi.data_ptr(), hi._version)
        merged = _last_save[1].get(key)
        if merged is None:
            merged = _last_save[1][key] = merge(hi, lo)
        state[prefix + name] = merged


def halves(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
    """(name, hi, lo) of what is split still: users assign other parameters, and call model.float()."""
    for name, lo in module.__dict__.get("_split_lo", {}).items():
        hi = module._parameters.get(name)
        if hi is not None and hi.dtype is torch.bfloat16 and hi.shape == lo.shape:
            yield name, hi, lo


def lower_half(module: nn.Module, name: str) -> Tensor | None:
    """That of halves(), also while the parameter is whole (whole_weights.py)."""
    lo: Tensor | None = module.__dict__.get("_split_lo", {}).get(name)
    return lo


def _load(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Takes fp32 weights, or any others, from a state_dict."""
    for name, _hi, lo in halves(module):
        given = state.get(prefix + name)
        if given is None or given.shape != lo.shape or given.is_meta:
            continue  # torch will say so
        hi, new_lo = split(given.detach().to("cpu", torch.float32))
        lo.copy_(new_lo)
        state[prefix + name] = hi

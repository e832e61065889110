"""Linear layers that take the activation behind them in, and gated MLPs: in nn.Sequential, and in a module's own code.

    activation(x W^T + b)                one pass over the result instead of two or three, and nothing kept but x W^T
    activation(x Wg^T) * (x Wu^T)        SwiGLU, GEGLU

Parameters, keys of the state_dict and submodules stay as they are; a module that has hooks is called as ever.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .graph import GraphForward, make_plan
from .kinds import activation_of, has_global_hooks, is_bare, is_linear
from .rewrite import PLAIN, linear_activation, linear_name
from .straight_line import Inexact

_METHODS = ("_ff_block", "ff_chunk")
"""Methods that hold the activation, in torch.nn.TransformerEncoderLayer and DecoderLayer, and in Hugging Face's
DistilBERT and ALBERT, where forward itself branches. In all other classes: forward."""


@dataclass(frozen=True)
class Fused:
    what: str  # for explain(): "Linear + GELU"


@dataclass(frozen=True)
class NotFused:
    reason: str  # empty when it has no linear layer with an activation


class Sequential(nn.Sequential):
    """Runs a linear layer and the activation behind it as one."""

    def forward(self, input):  # type: ignore[no-untyped-def]
        if torch.compiler.is_compiling() or has_global_hooks():
            return super().forward(input)
        modules = list(self)
        index = 0
        while index < len(modules):
            module = modules[index]
            activation = _fused_activation(modules, index) if type(input) in PLAIN else None
            if activation is None:
                input = module(input)
                index += 1
            else:
                input = linear_activation(module, input, activation)
                index += 2
        return input


def _fused_activation(modules: list[nn.Module], index: int) -> str | None:
    """The activation of the module after this one, when both can be run as one."""
    if index + 1 == len(modules) or not is_linear(modules[index]):
        return None
    activation = activation_of(modules[index + 1])
    return activation if activation and is_bare(modules[index]) and is_bare(modules[index + 1]) else None


def fuse(module: nn.Module) -> Fused | NotFused:
    """Fuses what the module's own code runs one after the other; its submodules' code is theirs. unfuse() undoes it."""
    if type(module) is nn.Sequential:
        return _fuse_sequential(module)
    name = next((name for name in _METHODS if hasattr(type(module), name)), "forward")
    if not _may_activate(module, name):
        return NotFused("")
    if name in module.__dict__:
        return NotFused(f"its {name} was replaced")
    try:
        plan = make_plan(module, name)
    except Inexact as inexact:
        return NotFused(str(inexact) if any(map(is_linear, module.children())) else "")
    module.__dict__[name] = GraphForward(module, name, plan)
    return Fused(plan.what)


def _may_activate(module: nn.Module, name: str) -> bool:
    """A quick look, so that not every module of a model is traced and explained."""
    if any(map(activation_of, module.children())):
        return True
    if not any(map(is_linear, module.children())):
        return False
    code = getattr(getattr(type(module), name), "__code__", None)
    functions = (F.relu, torch.relu, F.gelu, F.silu)
    return any(value in functions for value in vars(module).values() if callable(value)) or (
        code is not None and not {"relu", "relu_", "gelu", "silu"}.isdisjoint(code.co_names)
    )


def _fuse_sequential(module: nn.Sequential) -> Fused | NotFused:
    if "forward" in module.__dict__:
        return NotFused("its forward was replaced")
    modules = list(module)
    found = [_fused_activation(modules, index) for index in range(len(modules))]
    names = dict.fromkeys(linear_name(activation) for activation in found if activation)
    if not names:
        return NotFused("")
    module.__class__ = Sequential
    return Fused(", ".join(names))


def unfuse(module: nn.Module) -> None:
    """Gives the module its own code back. Nothing happens to one that was not fused."""
    if type(module) is Sequential:
        module.__class__ = nn.Sequential  # type: ignore[assignment]
    for name in ("forward", *_METHODS):
        if isinstance(module.__dict__.get(name), GraphForward):
            del module.__dict__[name]

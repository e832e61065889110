"""What one pass does instead of several: in nn.Sequential, and in a module's own code.

    activation(x W^T + b)                one pass over the result instead of two or three, and nothing kept but x W^T
    activation(x Wg^T) * (x Wu^T)        SwiGLU, GEGLU
    norm(a + b)                          RMSNorm and LayerNorm behind a residual sum

Parameters, keys of the state_dict and submodules stay as they are; a module that has hooks is called as ever.
"""

import ast
from collections.abc import Callable, Collection
from types import CodeType, FunctionType

import torch
import torch.nn.functional as F
from torch import nn

from ..mechanisms import Answer
from .graph import GraphForward, make_plan
from .kinds import PLAIN, activation_of, has_global_hooks, is_bare, is_linear, norm_of, takes_activation
from .rewriter import PARTS, fused_name, layer_activation, left_out, takers
from .straight_line import Inexact, source


class Sequential(nn.Sequential):
    """Runs a linear layer or convolution and the activation behind it as one."""

    takes_activation = staticmethod(takes_activation)

    def forward(self, input):  # type: ignore[no-untyped-def]
        if torch.compiler.is_compiling() or has_global_hooks():
            return super().forward(input)
        modules = list(self)
        index = 0
        while index < len(modules):
            module = modules[index]
            activation = _fused_activation(modules, index, self.takes_activation) if type(input) in PLAIN else None
            if activation is None:
                input = module(input)
                index += 1
            else:
                input = layer_activation(module, input, activation)
                index += 2
        return input


class SequentialOfLinear(Sequential):
    """The same for linear layers alone."""

    takes_activation = staticmethod(is_linear)


def _fused_activation(modules: list[nn.Module], index: int, takes: Callable[[object], bool]) -> str | None:
    """The activation of the module after this one, when both can be run as one."""
    if index + 1 == len(modules) or not takes(modules[index]):
        return None
    activation = activation_of(modules[index + 1])
    return activation if activation and is_bare(modules[index]) and is_bare(modules[index + 1]) else None


def replace(module: nn.Module, without: Collection[str] = ()) -> Answer:
    """Fuses what the module's own code runs one after the other; its submodules' code is theirs.

    Empty for a module that has nothing to fuse.
    """
    off = left_out(without)
    if off >= PARTS:
        return Answer()
    if type(module) is nn.Sequential:
        return Answer() if "activations" in off else _fuse_sequential(module, off)
    answer = _fuse_method(module, "forward", off)
    if answer.done or "forward" in module.__dict__:
        return answer
    others = [_fuse_method(module, name, off) for name in _methods_of_forward(type(module))]
    done = ", ".join(other.done for other in others if other.done)
    parts = tuple(sorted({part for other in others for part in other.parts}))
    return Answer(done, parts=parts) if done else answer


def _fuse_method(module: nn.Module, name: str, off: frozenset[str]) -> Answer:
    code = getattr(getattr(type(module), name), "__code__", None)
    may_sum = "residuals" not in off and _may_sum(module, code)
    if not may_sum and not _may_activate(module, code):
        return Answer()
    if name in module.__dict__:
        return Answer(left=f"its {name} was replaced")
    try:
        plan = make_plan(module, name, off)
    except Inexact as inexact:
        return Answer(left=str(inexact) if may_sum or any(map(takes_activation, module.children())) else "")
    module.__dict__[name] = GraphForward(module, name, plan, off)
    return Answer(plan.what, parts=plan.parts)


def _methods_of_forward(kind: type[nn.Module]) -> list[str]:
    """Methods that a forward which branches leaves parts to: _ff_block in torch.nn.TransformerEncoderLayer, ff_chunk
    in Hugging Face's DistilBERT and ALBERT."""
    code = getattr(kind.forward, "__code__", None)
    names = () if code is None else code.co_names
    return [name for name in names if isinstance(getattr(kind, name, None), FunctionType) and name not in _OF_EVERY]


_OF_EVERY = frozenset(dir(nn.Module))


def _may_activate(module: nn.Module, code: CodeType | None) -> bool:
    """A quick look, so that not every module of a model is traced and explained."""
    if any(map(activation_of, module.children())):
        return True
    if not any(map(takes_activation, module.children())):
        return False
    functions = (F.relu, torch.relu, F.gelu, F.silu)
    return any(value in functions for value in vars(module).values() if callable(value)) or (
        code is not None and not {"relu", "relu_", "gelu", "silu"}.isdisjoint(code.co_names)
    )


def _may_sum(module: nn.Module, code: CodeType | None) -> bool:
    """Whether it holds a norm and adds something."""
    if code is None or not any(map(norm_of, module.children())):
        return False
    written = source(code)
    if written is None or "add" in code.co_names:
        return True
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) for node in ast.walk(written))


def _fuse_sequential(module: nn.Sequential, off: frozenset[str]) -> Answer:
    if "forward" in module.__dict__:
        return Answer(left="its forward was replaced")
    modules = list(module)
    found = [_fused_activation(modules, index, takers(off)) for index in range(len(modules))]
    named = zip(modules, found, strict=True)
    names = dict.fromkeys(fused_name(layer, activation) for layer, activation in named if activation)
    if names:
        module.__class__ = SequentialOfLinear if "convolutions" in off else Sequential
    return Answer(", ".join(names), parts=("activations",) if names else ())


def put_back(module: nn.Module) -> None:
    """Gives the module its own code back. Nothing happens to one that was not fused."""
    if isinstance(module, Sequential):
        module.__class__ = nn.Sequential  # type: ignore[assignment]
    for name, value in list(module.__dict__.items()):
        if isinstance(value, GraphForward):
            del module.__dict__[name]

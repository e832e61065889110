"""Which methods torch.fx records exactly.

torch.fx runs a method once with stand-ins for tensors and keeps the operations on them. Everything else that the method
looked at is a constant from then on: a branch taken, a number read from the module, a random tensor. So a method is
traced only when its bytecode shows that there is nothing else, or nothing else that cannot be compared at each call:

- no jumps, loops, contexts, nested functions, imports, writes to attributes or items, nor operations in place;
- of `self`: submodules that are called, parameters and buffers, which are looked up at each call anyway, and plain
  values, which are compared;
- of globals: functions that are called and show up in the trace under the same name, and constants of torch and math.
"""

import dis
import inspect
import math
from collections import Counter
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

_ALLOWED = {
    "RESUME", "NOP", "CACHE", "PUSH_NULL", "PRECALL", "KW_NAMES", "COPY", "SWAP", "DUP_TOP", "ROT_TWO", "ROT_THREE",
    "POP_TOP", "EXTENDED_ARG", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD",
    "STORE_FAST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "CALL", "CALL_KW",
    "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD", "RETURN_VALUE", "RETURN_CONST", "BINARY_OP", "BINARY_ADD",
    "BINARY_SUBTRACT", "BINARY_MULTIPLY", "BINARY_TRUE_DIVIDE", "BINARY_POWER", "BINARY_MATRIX_MULTIPLY",
    "BINARY_SUBSCR", "BINARY_SLICE", "BUILD_SLICE", "BUILD_TUPLE", "BUILD_LIST", "UNPACK_SEQUENCE", "UNARY_NEGATIVE",
}  # fmt: skip
"""Of CPython 3.10 to 3.14. What a later one adds is refused until somebody has looked at it."""

_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_CONSTANTS = (bool, int, float, str, type(None), torch.dtype)
_FOREIGN_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


class Inexact(Exception):
    """Why a trace might not do what the method does, in words for explain()."""


@dataclass
class Reads:
    """What a method takes from elsewhere than its arguments."""

    children: Counter[str] = field(default_factory=Counter)  # submodules of self
    functions: Counter[Any] = field(default_factory=Counter)  # of globals and attributes of self
    plain: dict[str, Any] = field(default_factory=dict)  # attributes of self to be compared at each call


def reads(module: nn.Module, name: str) -> Reads:
    """What module.name reads. Raises Inexact when it is more than a trace can hold."""
    function = inspect.getattr_static(type(module), name)
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise Inexact(f"its {name} is not a plain method")
    code = function.__code__
    if code.co_flags & _FOREIGN_ARGUMENTS or code.co_kwonlyargcount or function.__defaults__:
        raise Inexact(f"its {name} takes more than positional arguments without defaults")
    if not code.co_argcount:
        raise Inexact(f"its {name} does not take self")
    found = Reads()
    for chain in _chains(code):
        if chain[0] is _SELF:
            _read_self(module, chain[1:], found)
        else:
            _read_global(function.__globals__, chain, found)
    return found


_SELF = "<self>"


def _chains(code: CodeType) -> list[list[str]]:
    """[_SELF or a global's name, attribute, attribute ...], each as it is written in the code."""
    self_name = code.co_varnames[0]
    chains: list[list[str]] = []
    growing = False  # whether the top of the stack is what the last chain leads to
    for step in dis.get_instructions(code):
        operation = step.opname
        if operation not in _ALLOWED or (operation == "BINARY_OP" and step.argrepr.endswith("=")):
            jumps = "JUMP" in operation or "ITER" in operation
            raise Inexact(f"its code {'branches or loops' if jumps else f'is not plain: {operation}'}")
        if operation == "PUSH_NULL":  # 3.13 puts it between the loading of a function and that of its arguments
            continue
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            if growing:
                chains[-1].append(step.argval)
            continue
        growing = False
        if operation == "LOAD_GLOBAL":
            chains.append([step.argval])
            growing = True
        elif "_FAST" in operation:
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            stores = operation.count("STORE_FAST")
            if self_name in names[:stores]:
                raise Inexact("it assigns to self")
            for loaded in names[stores:]:
                if loaded == self_name:
                    chains.append([_SELF])
            growing = stores < len(names) and names[-1] == self_name
    return chains


def _read_self(module: nn.Module, attributes: list[str], found: Reads) -> None:
    if not attributes:
        raise Inexact("it hands self on")
    name = attributes[0]
    if module._modules.get(name) is not None:
        if len(attributes) > 1:
            raise Inexact(f"it looks into self.{name}")
        found.children[name] += 1
    elif module._parameters.get(name) is not None or module._buffers.get(name) is not None:
        pass  # a stand-in while tracing: what is done with it is recorded
    elif name in module.__dict__ and len(attributes) == 1:
        value = module.__dict__[name]
        if isinstance(value, _FUNCTIONS):
            found.functions[value] += 1
        elif not isinstance(value, _CONSTANTS):
            raise Inexact(f"it uses self.{name}, a {type(value).__name__}")
        found.plain[name] = value
    else:
        raise Inexact(f"it uses self.{'.'.join(attributes)}")


def _read_global(names: dict[str, Any], chain: list[str], found: Reads) -> None:
    value = names.get(chain[0])
    for name in chain[1:]:
        if value is not math and not (isinstance(value, ModuleType) and value.__name__.split(".")[0] == "torch"):
            raise Inexact(f"it uses {'.'.join(chain)}")
        value = getattr(value, name, None)
    if isinstance(value, _CONSTANTS) and len(chain) > 1:
        return
    if not isinstance(value, _FUNCTIONS):
        raise Inexact(f"it uses the global {'.'.join(chain)}")
    found.functions[value] += 1

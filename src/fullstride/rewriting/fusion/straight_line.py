"""Which methods torch.fx records exactly.

torch.fx runs a method once with stand-ins for tensors and keeps the operations on them. Everything else that the method
looked at is a constant from then on: a branch taken, a number read from the module, a random tensor. So a method is
traced only when its source shows that there is nothing else, or nothing else that cannot be compared at each call:

- no branches, loops, contexts, nested functions, imports, writes to attributes or items, nor operations in place;
- of `self`: submodules that are called, parameters and buffers, which are looked up at each call anyway, and plain
  values, which are compared;
- of globals: functions that are called and show up in the trace under the same name, and constants of torch and math.

A file may have changed since it was imported: source counts only if it compiles to the very code that runs. What is not
in the list of constructs is refused, so syntax that a later Python adds means "not fused".
"""

import ast
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

_PLAIN = {
    "Return(value)", "Assign(targets,value,type_comment)", "AnnAssign(target,annotation,value,simple)", "Expr(value)",
    "NamedExpr(target,value)", "Pass()", "Call(func,args,keywords)", "keyword(arg,value)", "Attribute(value,attr,ctx)",
    "Subscript(value,slice,ctx)", "Slice(lower,upper,step)", "Name(id,ctx)", "Constant(value,kind)", "Tuple(elts,ctx)",
    "List(elts,ctx)", "BinOp(left,op,right)", "UnaryOp(op,operand)", "USub()",
}  # fmt: skip
"""Classes of ast with their fields: one that gains a field in a later Python may mean something else there."""

_BRANCHES = (
    ast.If, ast.IfExp, ast.BoolOp, ast.Assert, ast.Match, ast.Try, ast.For, ast.AsyncFor, ast.While, ast.ListComp,
    ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
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
    written = source(code)
    if written is None:
        raise Inexact("its source is not to be had or is not what runs")
    chains = [chain for statement in written.body for chain in _chains(statement, code)]
    if code.co_freevars or code.co_cellvars:
        raise Inexact("it uses variables of another function, or super()")
    found = Reads()
    for chain in chains:
        if chain[0] == code.co_varnames[0]:
            _read_self(module, chain[1:], found)
        elif chain[0] not in code.co_varnames:
            _read_global(function.__globals__, chain, found)
    return found


@cache
def source(code: CodeType) -> ast.FunctionDef | None:
    """The function as it is written where the code comes from, if that compiles to this very code."""
    try:
        functions, codes = _compiled("".join(inspect.findsource(code)[0]))
    except (OSError, TypeError, ValueError, SyntaxError):  # no file, as of exec(), or one that is being edited
        return None
    return functions.get((code.co_name, code.co_firstlineno)) if code in codes else None


@lru_cache(maxsize=2)  # modules of a model come from few files
def _compiled(text: str) -> tuple[dict[tuple[str, int], ast.FunctionDef], list[CodeType]]:
    """Functions by name and first line, and all code. Of a whole file: its imports change the code of its methods."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it has said what there is to say
        tree = ast.parse(text)
        codes = [compile(tree, "", "exec", dont_inherit=True)]
    for code in codes:
        codes += (constant for constant in code.co_consts if isinstance(constant, CodeType))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {(f.name, min([f.lineno, *(node.lineno for node in f.decorator_list)])): f for f in functions}, codes


def _chains(node: ast.AST, code: CodeType) -> Iterator[list[str]]:
    """[name, attribute, attribute ...] of each name that is read, as it is written."""
    _check(node)
    chain: list[str] = []
    root = node
    while isinstance(root, ast.Attribute):
        chain, root = [_mangled(root.attr, code), *chain], root.value
    if not isinstance(root, ast.Name):
        for child in ast.iter_child_nodes(node):
            if not isinstance(node, ast.AnnAssign) or child is not node.annotation:  # which does not run
                yield from _chains(child, code)
    elif isinstance(root.ctx, ast.Load):
        yield [_mangled(root.id, code), *chain]
    elif root.id == code.co_varnames[0]:
        raise Inexact("it assigns to self")


def _check(node: ast.AST) -> None:
    name = type(node).__name__
    if isinstance(node, _BRANCHES):
        raise Inexact("its code branches or loops")
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        raise Inexact("it writes to an attribute or an item")
    is_plain = f"{name}({','.join(node._fields)})" in _PLAIN or isinstance(node, (ast.operator, ast.expr_context))
    if not is_plain or (isinstance(node, ast.keyword) and node.arg is None):  # **options
        raise Inexact(f"its code is not plain: {name}")


def _mangled(name: str, code: CodeType) -> str:
    """Python's rule for the private names of a class. CPython 3.10 does not tell the class: they are not found then."""
    owner = f".{getattr(code, 'co_qualname', '')}".split(".")[-2].lstrip("_")
    return f"_{owner}{name}" if owner and name.startswith("__") and not name.endswith("__") else name


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

"""Which methods torch.fx records exactly.

torch.fx runs a method once with stand-ins for tensors and keeps the operations on them. Everything else that the method
looked at is a constant from then on: a branch taken, a number read from the module, a random tensor. So a method is
traced only when its source shows that there is nothing else, or nothing else that cannot be compared at each call:

- no branches, loops, contexts, nested functions, imports, writes to attributes or items, nor operations in place;
- of `self`: submodules called right there, parameters and buffers, looked up at each call, and plain values, compared;
- of globals: functions called right there that the trace shows under the same name, dtypes, and constants of math.

A file may have changed since it was imported: source counts only if it compiles to the very code that runs. What is not
in the list of constructs is refused, so syntax that a later Python adds means "not fused".
"""

import ast
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Iterator
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


def reads(module: nn.Module, name: str) -> tuple[Counter[Any], dict[str, Any]]:
    """What module.name calls, submodules by name and functions, and the attributes of self to be compared at each call.
    Raises Inexact when it is more than a trace can hold."""
    function = inspect.getattr_static(type(module), name)
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise Inexact(f"its {name} is not a plain method")
    code = function.__code__
    if not code.co_argcount or code.co_kwonlyargcount or function.__defaults__ or code.co_flags & _FOREIGN_ARGUMENTS:
        raise Inexact(f"its {name} takes something else than self and positional arguments without defaults")
    written = source(code)
    if written is None:
        raise Inexact("its source is not to be had or is not what runs")
    chains = [found for statement in written.body for found in _chains(statement, code)]
    if code.co_freevars or code.co_cellvars:
        raise Inexact("it uses variables of another function, or super()")
    calls: Counter[Any] = Counter()
    plain: dict[str, Any] = {}
    for chain, is_called in chains:
        if chain[0] == code.co_varnames[0]:
            callee = _of_self(module, chain[1:], plain)
        else:
            callee = None if chain[0] in code.co_varnames else _of_globals(function.__globals__, chain)
        if callee is not None:
            if not is_called:  # under another name nobody would see what is read from it
                raise Inexact(f"it hands {'.'.join(chain)} on")
            calls[callee] += 1
    return calls, plain


@cache
def source(code: CodeType) -> ast.FunctionDef | None:
    """The function as it is written where the code comes from, if that compiles to this very code."""
    try:
        return _compiled("".join(inspect.findsource(code)[0])).get(code)
    except (OSError, TypeError, ValueError, SyntaxError):  # no file, as of exec(), or one that is being edited
        return None


@lru_cache(maxsize=2)  # modules of a model come from few files
def _compiled(text: str) -> dict[CodeType, ast.FunctionDef | None]:
    """All code with the function that it is of. Of a whole file: its imports change the code of its methods."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it has said what there is to say
        tree = ast.parse(text)
        codes = [compile(tree, "", "exec", dont_inherit=True)]
    for code in codes:
        codes += (constant for constant in code.co_consts if isinstance(constant, CodeType))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    places = {(f.name, min([f.lineno, *(node.lineno for node in f.decorator_list)])): f for f in functions}
    return {code: places.get((code.co_name, code.co_firstlineno)) for code in codes}


def _chains(node: ast.AST, code: CodeType, is_called: bool = False) -> Iterator[tuple[list[str], bool]]:
    """[name, attribute, attribute ...] of each name that is read, as it is written, and whether that is called."""
    is_read = isinstance(getattr(node, "ctx", None), ast.Load)
    _check_plain(node, is_read)
    chain: list[str] = []
    root = node
    while isinstance(root, ast.Attribute):
        chain, root = [_mangled(root.attr, code), *chain], root.value
    if any(name.startswith("__") and name.endswith("__") for name in chain):  # x.__class__ is that of the stand-in
        raise Inexact(f"it uses {'.'.join(chain)}")
    if not isinstance(root, ast.Name):
        for child in ast.iter_child_nodes(node):
            if child is not getattr(node, "annotation", None):  # which does not run
                yield from _chains(child, code, child is getattr(node, "func", None))
    elif is_read:
        yield [_mangled(root.id, code), *chain], is_called
    elif _mangled(root.id, code) == code.co_varnames[0]:
        raise Inexact("it assigns to self")


def _check_plain(node: ast.AST, is_read: bool) -> None:
    kind = type(node).__name__
    if isinstance(node, _BRANCHES):
        raise Inexact("its code branches or loops")
    if kind in ("Attribute", "Subscript") and not is_read:
        raise Inexact("it writes to an attribute or an item")
    is_plain = f"{kind}({','.join(node._fields)})" in _PLAIN or isinstance(node, (ast.operator, ast.expr_context))
    if not is_plain or (isinstance(node, ast.keyword) and node.arg is None):  # **options
        raise Inexact(f"its code is not plain: {kind}")


def _mangled(name: str, code: CodeType) -> str:
    """Python's rule for the private names of a class. CPython 3.10 does not tell the class: they are not found then."""
    owner = f".{getattr(code, 'co_qualname', '')}".split(".")[-2].lstrip("_")
    return f"_{owner}{name}" if owner and name.startswith("__") and not name.endswith("__") else name


def _of_self(module: nn.Module, attributes: list[str], plain: dict[str, Any]) -> Any:
    """The submodule, by name, or the function that self.attributes is; None for a value, which goes to plain."""
    if not attributes:
        raise Inexact("it hands self on")
    name, is_deep = attributes[0], len(attributes) > 1
    of_class = [vars(kind)[name] for kind in type(module).__mro__ if name in vars(kind)]
    if not of_class and name not in module.__dict__:  # either would be found first
        if module._modules.get(name) is not None:
            if is_deep:
                raise Inexact(f"it looks into self.{name}")
            return name
        if module._parameters.get(name) is not None or module._buffers.get(name) is not None:
            return None  # a stand-in while tracing: what is done with it is recorded
    if name not in module.__dict__ or is_deep or any(map(inspect.isdatadescriptor, of_class)):
        raise Inexact(f"it uses self.{'.'.join(attributes)}")
    value = plain[name] = module.__dict__[name]
    if not isinstance(value, _FUNCTIONS + _CONSTANTS):
        raise Inexact(f"it uses self.{name}, a {type(value).__name__}")
    return value if isinstance(value, _FUNCTIONS) else None


def _of_globals(names: dict[str, Any], chain: list[str]) -> Any:
    """The function that it is; None for a constant."""
    owner, value = None, names.get(chain[0])
    for name in chain[1:]:
        if value is not math and not (isinstance(value, ModuleType) and value.__name__.split(".")[0] == "torch"):
            raise Inexact(f"it uses {'.'.join(chain)}")
        owner, value = value, getattr(value, name, None)
    if isinstance(value, _FUNCTIONS):
        return value
    of_torch = owner is torch and (isinstance(value, torch.dtype) or chain[-1] in ("pi", "inf", "nan", "e"))
    if not of_torch and not (owner is math and isinstance(value, float)):
        raise Inexact(f"it uses the global {'.'.join(chain)}")
    return None

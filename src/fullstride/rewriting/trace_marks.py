"""Marks for torch's profiler: which module runs, which of our kernels, and who sent an operation our way.

Nothing is hooked: a module with hooks is not fused, so hooks would change what is looked at. For as long as marks()
lasts, nn.Module.__call__, the kernels and the tables of the mechanisms have a mark around them.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import _native
from ..ops import _overlap, _tied_gradients
from . import function_mode, lazy_logits, lazy_tensor
from .fusion.fuse import Sequential
from .fusion.graph import GraphForward
from .probes.contrastive import ContrastiveForward
from .probes.rms_norm import NormForward
from .probes.rotary import RotaryForward

THE_MODEL = "(the model)"
_PREFIX, _BETWEEN = "fullstride", "\x1f"  # which no path of a module has
_Record: Any = torch._C._profiler._RecordFunctionFast  # no operation of torch, so no mode of ours sees it


@dataclass(frozen=True)
class Mark:
    kind: str  # "module", "kernel" or "mechanism"
    name: str  # path of the module, name of the kernel, name of the mechanism
    detail: str = ""  # mechanism of the module, variant of the kernel

    def __str__(self) -> str:
        return _BETWEEN.join((_PREFIX, self.kind, self.name, self.detail))


def mark_of(event_name: str) -> Mark | None:
    prefix, *parts = event_name.split(_BETWEEN)
    return Mark(*parts) if prefix == _PREFIX and len(parts) == 3 else None


@contextmanager
def marks(model: nn.Module) -> Iterator[None]:
    """While it lasts, the profiler is told of modules, kernels and mechanisms. Afterwards all is as it was."""
    with ExitStack() as undo:
        _set(undo, os.environ, "KINETO_LOG_LEVEL", "99")  # torch's profiler tells stderr of its start and end
        _mark_modules(undo, model)
        kernels = _native.kernels.__dict__ if _native.available() else {}
        for name, function in list(kernels.items()):
            variant = function.__name__.removeprefix("fs_").removesuffix(f"_{name}")
            _set(undo, kernels, name, _marked(function, Mark("kernel", name, variant)))
        for table, mechanism in ((function_mode.TABLE, "function_mode"), (lazy_tensor.FUNCTIONS, "lazy_logits")):
            for key, function in list(table.items()):
                _set(undo, table, key, _marked(function, Mark("mechanism", mechanism)))
        _mark_everywhere(undo, lazy_logits.lazy_linear, Mark("mechanism", "lazy_logits"))
        _mark_everywhere(undo, _overlap._product_beside, Mark("mechanism", "overlap"))
        _mark_everywhere(undo, _tied_gradients.grad_to_add_to, Mark("mechanism", "tied_gradients"), only_if_used=True)
        yield


def _mark_modules(undo: ExitStack, model: nn.Module) -> None:
    known: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        known[module] = str(Mark("module", path or THE_MODEL, mechanism_of(module)))
    call = nn.Module.__call__

    def marked_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = known.get(self) or str(Mark("module", f"({type(self).__name__})", mechanism_of(self)))
        with _Record(name):
            return call(self, *args, **kwargs)

    nn.Module.__call__ = marked_call  # type: ignore[method-assign]
    undo.callback(setattr, nn.Module, "__call__", call)


def mechanism_of(module: nn.Module) -> str:
    """What prepare() did to this module, or "-"."""
    forward = module.__dict__.get("forward")
    forward = getattr(forward, "inner", forward)
    if type(module) is lazy_logits.LazyHead:
        return "lazy_logits"
    if type(module).__module__.startswith(f"{_PREFIX}.nn."):
        return "class_swap"
    if isinstance(forward, (NormForward, RotaryForward, ContrastiveForward)):
        return "probes"
    fused = any(isinstance(getattr(value, "inner", value), GraphForward) for value in module.__dict__.values())
    return "fusion" if fused or isinstance(module, Sequential) else "-"


def _marked(function: Callable[..., Any], mark: Mark, only_if_used: bool = False) -> Callable[..., Any]:
    name = str(mark)

    def marked(*args: Any, **kwargs: Any) -> Any:
        if not only_if_used:
            with _Record(name):
                return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if result is not None:
            with _Record(name):
                pass
        return result

    return marked


def _mark_everywhere(undo: ExitStack, function: Any, mark: Mark, only_if_used: bool = False) -> None:
    """In each module of the package that has imported the function."""
    marked = _marked(function, mark, only_if_used)
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_PREFIX}."):
            for key, value in list(vars(module).items()):
                if value is function:
                    _set(undo, vars(module), key, marked)


def _set(undo: ExitStack, table: Any, key: Any, value: Any) -> None:
    """table[key] = value until undone, unless somebody else has put something there since."""
    missing = object()
    before = table.get(key, missing)

    def put_back() -> None:
        if table.get(key) == value:
            if before is missing:
                del table[key]
            else:
                table[key] = before

    table[key] = value
    undo.callback(put_back)

"""The forward of a prepared module: the module's own, with our functions and the precision around it.

Every module with a Python forward of its own gets one, and every one that multiplies by split weights, so that parts of
a model can be called alone: by a method such as encode_image(), or as a block that torch.utils.checkpoint runs again in
backward. Only the outermost call enters the contexts, and it gives fp32 back. It is an object of a class at module
level, not a closure: models are pickled and deep-copied.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from ..optim.scaling import LossScaler, scale_gradient
from .function_mode import FastFunctions
from .kept_activations import kept_as_bf16
from .split_weights import is_split


@dataclass(eq=False)
class Setting:
    """What the prepared forwards of one model share."""

    dtype: torch.dtype | None  # of autocast; None for fp32
    scaler: LossScaler | None = None  # of fp16
    answers: bool = True  # functions that the model calls, by function_mode.py
    without: frozenset[str] = frozenset()  # parts that torch computes
    rounds: bool = False  # what forward keeps for backward to bf16, by kept_activations.py
    caught: dict[str, int] = field(default_factory=dict)  # how often it did, by the name of the function


_running = threading.local()


@contextmanager
def fast(setting: Setting, again: bool = False) -> Iterator[None]:
    """Our functions and autocast, unless a prepared forward of this precision already runs in this thread.

    again: of a part that torch.utils.checkpoint runs once more. What is kept of it is checkpoint's now as it was then.
    """
    if _runs(setting):
        yield
        return
    outer = getattr(_running, "setting", None)  # of a model of another precision that calls this one
    autocast: Any = nullcontext()
    if setting.dtype is not None or outer is not None:
        autocast = torch.autocast("cpu", setting.dtype, enabled=setting.dtype is not None)
    _running.setting = setting
    try:
        with (
            autocast,
            FastFunctions(setting.caught, setting.without) if setting.answers else nullcontext(),
            kept_as_bf16() if setting.rounds and not again else nullcontext(),
        ):
            yield
    finally:
        _running.setting = outer


def _runs(setting: Setting) -> bool:
    running: Setting | None = getattr(_running, "setting", None)
    if running is None or running.dtype is not setting.dtype:
        return False
    if (running.answers, running.without) != (setting.answers, setting.without):
        return False
    return running.rounds or not setting.rounds


class PreparedForward:
    """is_root: of the model itself. multiplies: by split weights, which fp32 tensors do not fit without autocast."""

    def __init__(self, module: nn.Module, setting: Setting, is_root: bool, multiplies: bool = False) -> None:
        self.module, self.setting, self.is_root, self.multiplies = module, setting, is_root, multiplies
        self.inner: Callable[..., Any] | None = module.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        setting = self.setting
        is_off = setting.dtype is not None and not torch.is_autocast_enabled("cpu")
        if not torch.compiler.is_compiling() and not _runs(setting):
            with fast(setting):
                y = self._forward(*args, **kwargs)
        elif is_off and (self.is_root or self.multiplies):  # by user's code inside of the model, or not on yet
            with torch.autocast("cpu", setting.dtype):
                y = self._forward(*args, **kwargs)
        else:
            y, is_off = self._forward(*args, **kwargs), False
        if setting.dtype is None or not (self.is_root or is_off):
            return y
        y = to_fp32(y)
        return _scaled(y, setting.scaler) if self.is_root and setting.scaler is not None else y

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        # Not a bound method: where torch.compile breaks its graph it makes `module.forward` of that, which is self.
        return type(self.module).forward(self.module, *args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """For inspect.signature: some trainers look at the names of a model's arguments."""
        return self.inner or type(self.module).forward.__get__(self.module)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)


def wrap_forwards(model: nn.Module, setting: Setting) -> None:
    """Around the model, and around each module that needs them when it is called alone.

    Those are modules written in Python by others, which may call functions, and those that multiply by split weights.
    """
    for module in model.modules():
        place = type(module).__module__
        ours = place.startswith(("fullstride.", "torch.nn.")) and not place.startswith("fullstride.models.")
        is_fused = "forward" in module.__dict__
        multiplies = (ours or is_fused) and any(map(is_split, (module, *module.children())))
        if module is model or not ours or multiplies:
            module.__dict__["forward"] = PreparedForward(module, setting, module is model, multiplies)


def unwrap_forwards(model: nn.Module) -> None:
    for module in model.modules():
        prepared = module.__dict__.get("forward")
        if isinstance(prepared, PreparedForward):
            del module.__dict__["forward"]
            if prepared.inner is not None:
                module.__dict__["forward"] = prepared.inner


def to_fp32(value: Any) -> Any:
    """A model's output with its 16-bit tensors in fp32: losses made outside of the model are made in fp32."""
    return _map(value, lambda t: t.float() if t.dtype in (torch.bfloat16, torch.float16) else t)


@torch.compiler.disable  # the scale of the moment is not that of the moment of compilation
def _scaled(value: Any, scaler: LossScaler) -> Any:
    return _map(value, lambda t: scale_gradient(t, scaler) if t.requires_grad else t)


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with every tensor changed, through tuples, lists and mappings; other objects are left as they are."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(x, change) for x in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_map(x, change) for x in value)
    if isinstance(value, dict):  # Hugging Face's ModelOutput, too: its items are its attributes
        for key in list(value):
            value[key] = _map(value[key], change)
    return value


def follow_checkpoints() -> Callable[[], None]:
    """Lets torch.utils.checkpoint run a function again as it ran it first: with our functions around it.

    It restores autocast and random numbers, and knows nothing of a TorchFunctionMode. Other functions would save other
    tensors, which it refuses. Modules bring their own PreparedForward, plain functions do not. Returns the way back.
    """
    name = "_checkpoint_without_reentrant_generator"
    original = getattr(torch.utils.checkpoint, name, None)
    if original is None:
        return lambda: None

    @wraps(original)
    def generator(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        setting = getattr(_running, "setting", None)
        return original(fn if setting is None else _Again(fn, setting), *args, **kwargs)

    def put_back() -> None:
        if getattr(torch.utils.checkpoint, name) is generator:  # and not somebody's who came later
            setattr(torch.utils.checkpoint, name, original)

    setattr(torch.utils.checkpoint, name, generator)
    return put_back


class _Again:
    def __init__(self, function: Callable[..., Any], setting: Setting) -> None:
        self.function, self.setting = function, setting

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with fast(self.setting, again=True):
            return self.function(*args, **kwargs)

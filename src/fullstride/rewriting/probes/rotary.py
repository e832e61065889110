"""Rotary position embedding by ops.rope, for modules whose forward takes (x, cos, sin) and turns pairs.

    (a, b) -> (a cos - b sin, b cos + a sin),   x: (B, H, T, d) or (B, T, H, d),   cos and sin: (T, d / 2)

Everybody writes their own, with the pairs (i, i + d/2) or (2i, 2i + 1). They are known by what they do: a module that
has nothing of its own but plain values is run on probes, and if the results are those of the formula, its forward is
replaced. It still runs where the kernel would compute something else: other shapes, a gradient wanted for the angles.
"""

import copy
import inspect
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from ...ops._tensors import takes_kernel
from ...ops.rope import rope, rope_reference, rope_tables
from .stand_in import PLAIN_VALUES, StandIn, own_attributes

_PROBES = ((2, 3, 5, 8), (1, 7, 4, 2), (3, 2, 6, 64))  # (B, heads, T, d), heads and T never alike
NOT_ROTARY = "turns cos and sin into something else than rotated pairs"


@dataclass(frozen=True)
class Way:
    """How a module turns: its pairs, and which dimension counts the positions."""

    interleaved: bool
    seq_dim: int


_WAYS = tuple(Way(interleaved, seq_dim) for seq_dim in (2, 1) for interleaved in (False, True))


class RotaryForward(StandIn):
    """Stands in for the forward of a module that turns pairs."""

    def __init__(self, module: nn.Module, way: Way) -> None:
        self.module, self.way = module, way
        self.plain = own_attributes(module)  # on which the outcome of the probe may depend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 3 or not self._fits(*args):
            return self.original(self.module, *args, **kwargs)
        x, cos, sin = args
        return rope(x, cos, sin, interleaved=self.way.interleaved, seq_dim=self.way.seq_dim)

    def _fits(self, x: Any, cos: Any, sin: Any) -> bool:
        """Whether the kernel gives what the module gives. Not when broadcasting is meant, nor where x is in 16 bits
        outside of autocast: the module would give fp32 there. Under autocast what follows casts to 16 bits anyway."""
        return (
            isinstance(x, Tensor)
            and isinstance(cos, Tensor)
            and isinstance(sin, Tensor)
            and x.dim() == 4
            and cos.shape == sin.shape == (x.shape[self.way.seq_dim], x.shape[3] // 2)
            and x.shape[3] % 2 == 0
            and cos.dtype is torch.float32
            and not (cos.requires_grad or sin.requires_grad)
            and takes_kernel(x)
            and takes_kernel(cos, sin)
            and (x.dtype is torch.float32 or torch.is_autocast_enabled("cpu"))
            and all(self.module.__dict__.get(name) == value for name, value in self.plain.items())
        )


def looks_like(module: nn.Module) -> bool:
    """Cheap: forward takes something, then cos and sin, and the module holds no tensors and no other modules."""
    forward = inspect.getattr_static(type(module), "forward")
    if not isinstance(forward, FunctionType) or forward.__code__.co_varnames[2:4] != ("cos", "sin"):
        return False
    code = forward.__code__
    no_more = not (code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    holds = (*module._parameters, *module._buffers, *module._modules)
    return code.co_argcount == 4 and no_more and not forward.__defaults__ and not holds


def way_of(module: nn.Module) -> Way | None:
    """How it turns, proved by numbers: forward and backward, of dense tensors and of transposed views."""
    if not all(isinstance(value, PLAIN_VALUES) for value in own_attributes(module).values()):
        return None
    return next((way for way in _WAYS if _turns(module, way)), None)


def _turns(module: nn.Module, way: Way) -> bool:
    double = copy.copy(module)  # whatever it writes to itself stays there
    double.__dict__.pop("forward", None)
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        for batch, heads, length, dim in _PROBES:
            shape = (batch, heads, length, dim) if way.seq_dim == 2 else (batch, length, heads, dim)
            dense = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
            for x in (dense, dense.transpose(1, 2).contiguous().transpose(1, 2)):
                if not _turns_this(double, x, way, generator):
                    return False
    return True


def _turns_this(module: nn.Module, x: Tensor, way: Way, generator: torch.Generator) -> bool:
    # Of later positions: tables that begin at 0 would hide that a module turns nothing in its first row.
    cos, sin = (table[3:] for table in rope_tables(x.shape[way.seq_dim] + 3, x.shape[3]))
    dy = torch.randn(x.shape, generator=generator, dtype=torch.float32, device="cpu")
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    try:
        y = module(a, cos, sin)
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype is not x.dtype or not y.requires_grad:
            return False
        y.backward(dy)
    except Exception:  # a probe of unknown code: whatever it raises, it is not what we replace
        return False
    expected = rope_reference(b, cos, sin, way.interleaved, seq_dim=way.seq_dim)
    expected.backward(dy)
    pairs: Any = ((y, expected), (a.grad, b.grad), (a, x))
    return all(torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5) for ours, theirs in pairs)

"""What one training step computes, call by call: sizes and dtypes, no values.

A Call is one operation as the prepared model runs it, forward and, where its gradient was asked for, backward. What a
prepared model does in one pass is one Call: a linear layer with its activation, a sum with the norm behind it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Computed by products of matrices: their rates are measured at their own sizes. All others are passes over memory.
PRODUCTS = frozenset({"linear", "convolution", "attention", "linear_cross_entropy", "matmul"})
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


@dataclass(frozen=True)
class Form:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    learns: bool = False  # a gradient is asked for

    @staticmethod
    def of(tensor: Tensor, dtype: torch.dtype | None = None) -> "Form":
        return Form(tuple(tensor.shape), dtype or tensor.dtype, tuple(tensor.stride()), tensor.requires_grad)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """What is read of it: an expanded dimension lies in memory once."""
        held = math.prod(size for size, step in zip(self.shape, self.stride, strict=True) if step or size <= 1)
        return held * self.dtype.itemsize

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{'x'.join(map(str, self.shape)) or '1'} {_SHORT.get(name, name)}"


@dataclass(eq=False)
class Call:
    """inputs and outputs by what they are to it; options decide how long it takes, too.

    wants: the inputs whose gradients were computed; None before backward came by, or if it never did.
    is_absorbed: another Call does it along the way.
    """

    name: str
    path: str  # of the module, with a * for each number in it
    inputs: dict[str, Form]
    outputs: dict[str, Form] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    flops: int = 0  # forward
    wants: frozenset[str] | None = None
    is_of_torch: bool = False  # one operation as torch calls it; those of its backward are calls of their own
    is_backward: bool = False  # and this is one of them
    is_absorbed: bool = False

    @property
    def is_product(self) -> bool:
        return self.name in PRODUCTS

    @property
    def key(self) -> str:
        """The same for calls that take the same time, forward and backward."""
        forms = [f"{role} {form}" for role, form in self.inputs.items()]
        loose = [role for role, form in self.inputs.items() if not _is_dense(form)]
        options = [f"{name}={value}" for name, value in sorted(self.options.items())]
        wants = [] if self.wants is None else ["d" + role for role in sorted(self.wants)]
        parts = [*forms, *([f"strided {' '.join(loose)}"] if loose else []), *options]
        return f"{self.name}({', '.join(parts)})" + (f" -> {' '.join(wants)}" if wants else "")


def _is_dense(form: Form) -> bool:
    expected = 1
    for size, step in zip(reversed(form.shape), reversed(form.stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


@dataclass(frozen=True)
class Counted:
    """Of one micro-batch: the calls in their order, and how often Python or autograd were asked for anything."""

    calls: tuple[Call, ...]
    num_asked: int


def nbytes(forms: Iterable[Form]) -> int:
    return sum(form.nbytes for form in forms)

"""Tensors without values, for lazy_logits.py: which operations leave them so, and how the values come into being.

A lazy tensor has a dimension of classes. In its place its rows have the features, and an operation that leaves the
classes alone does the same to both: a view of the logits is the logits of a view of hidden. Any other operation gets
the values. Those fill a Memory once. A view shares it, so that writing in place works; a copy has one of its own.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..ops._tensors import KERNEL_DTYPES

aten = torch.ops.aten


@dataclass(eq=False)
class Call:
    """One call of a linear layer, known by its identity."""

    needs: tuple[bool, bool, bool]  # whether hidden, weight and bias want a gradient
    is_computed: bool = False  # whether somebody looked at its logits, or at a copy of them


class Inputs:
    """Rows, weight and bias of a linear layer, as they were when its logits were made."""

    def __init__(self, rows: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> None:
        self.call = call
        self._tensors: list[Any] = [None if x is None else x.detach() for x in (rows, weight, bias)]
        self._versions = [None if x is None else x._version for x in self._tensors]

    def get(self) -> tuple[Tensor, Tensor, Tensor | None]:
        names = ("input of their layer", "weight they need", "bias they need")
        for x, version, name in zip(self._tensors, self._versions, names, strict=True):
            if x is not None and x._version != version:
                raise RuntimeError(
                    f"these logits have not been computed yet, and the {name} has been changed in place since; look at"
                    " them before that (logits.sum() is enough)"
                )
        rows, weight, bias = self._tensors
        return rows, weight, bias

    def keep(self, addresses: set[int]) -> None:
        """Copies weight and bias if they are about to be changed."""
        for i in (1, 2):
            x = self._tensors[i]
            if x is not None and x._version == self._versions[i] and x.data_ptr() in addresses:
                self._tensors[i], self._versions[i] = x.clone(), 0


@dataclass(eq=False)
class Memory:
    """What a lazy tensor and its views would lie in."""

    alive: ClassVar["weakref.WeakSet[Memory]"] = weakref.WeakSet()
    inputs: Inputs
    fill: Callable[[], Tensor]  # computes the values, in new memory each time
    values: Tensor | None = None

    def __post_init__(self) -> None:
        Memory.alive.add(self)


class LazyTensor(Tensor):
    form: Tensor  # of the same shape, strides and dtype, on the meta device
    parts: tuple[Tensor, ...]  # what stands for the values; the rows come first
    classes_at: int
    memory: Memory
    replay: Callable[[Tensor], Tensor]  # what the memory holds -> the view of it that this tensor is

    def __new__(
        cls,
        form: Tensor,
        parts: tuple[Tensor, ...],
        classes_at: int,
        memory: Memory,
        replay: Callable[[Tensor], Tensor] = lambda values: values,
    ) -> Any:
        with torch.inference_mode(False):  # a view of an ordinary tensor is an ordinary one there, too
            self = Tensor._make_wrapper_subclass(
                cls, form.shape, strides=form.stride(), storage_offset=form.storage_offset(), dtype=form.dtype,
                device=torch.device("cpu"),
            )  # fmt: skip
        self.form, self.parts, self.classes_at, self.memory, self.replay = form, parts, classes_at, memory, replay
        return self

    def is_computed(self) -> bool:
        """Whether there are values, which somebody may even have changed since."""
        return self.memory.values is not None

    def computed(self) -> Tensor:
        """Plain, and outside of the graph."""
        with torch.inference_mode(False), torch.no_grad():
            if self.memory.values is None:
                self.memory.values = self.memory.fill()
            return self.replay(self.memory.values)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known, kwargs = FUNCTIONS.get(func), kwargs or {}
        result = NotImplemented if known is None else known(*args, **kwargs)
        if result is not NotImplemented:
            return result
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        rule, kwargs = RULES.get(func), kwargs or {}
        result = None if rule is None else rule(func, *args, **kwargs)
        return _by_values(func, args, kwargs) if result is None else result


class LazyLogits(LazyTensor):
    """parts: hidden"""


class LazyGradient(LazyTensor):
    """parts: dhidden, dweight, dbias; one that nobody wants is on the meta device"""


def dense(x: Any) -> Any:
    """A plain tensor with the values of a lazy one and its place in the graph; anything else as it is."""
    return x.expand(x.shape) if isinstance(x, LazyTensor) else x  # there is no rule for expand


def _by_values(func: Any, args: Any, kwargs: Any) -> Any:
    lazies = [x for x in tree_leaves((args, kwargs)) if isinstance(x, LazyTensor)]
    values = {id(x): x.computed() for x in lazies}
    args, kwargs = tree_map(lambda x: values.get(id(x), x), (args, kwargs))
    result = func(*args, **kwargs)
    if not func._schema.is_mutable:
        return result
    given = {id(values[id(x)]): x for x in lazies}  # what writes in place returns what it was given
    return tree_map(lambda x: given.get(id(x), x), result)


# ---- what stays lazy ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What an operation does to what stands for the values.

    parts: (func, form of the result, *args) -> parts of the result and where its classes are; None: it takes the values
    copies: the result has memory of its own. Where the values are there already, that is a plain operation.
    """

    parts: Callable[..., tuple[tuple[Tensor, ...], int] | None]
    copies: bool = False
    of: type[LazyTensor] = LazyTensor

    def __call__(self, func: Any, lazy: Any, *args: Any, **kwargs: Any) -> LazyTensor | None:
        lazies = [x for x in (lazy, *args) if isinstance(x, LazyTensor)]
        if not isinstance(lazy, self.of) or (self.copies and any(x.is_computed() for x in lazies)):
            return None
        if any(isinstance(x, Tensor) and x.dim() and not isinstance(x, LazyTensor) for x in args):
            return None

        def call(take: Callable[[LazyTensor], Tensor], **kwargs: Any) -> Any:
            return func(*(take(x) if isinstance(x, LazyTensor) else x for x in (lazy, *args)), **kwargs)

        form = call(lambda x: x.form, **{name: x for name, x in kwargs.items() if name not in ("device", "pin_memory")})
        outcome = self.parts(func, form, lazy, *args, **kwargs)
        if outcome is None:
            return None
        if not self.copies:
            return type(lazy)(form, *outcome, lazy.memory, lambda values: call(lambda x: x.replay(values), **kwargs))
        fill = partial(call, lambda x: x.replay(x.memory.fill()), **kwargs)
        return type(lazy)(form, *outcome, Memory(lazy.memory.inputs, fill))


def _same(func: Any, form: Tensor, lazy: LazyTensor, **kwargs: Any) -> Any:
    stays = form.dtype in KERNEL_DTYPES and torch.device(kwargs.get("device") or "cpu").type == "cpu"
    return (lazy.parts, lazy.classes_at) if stays else None


def _reshaped(func: Any, form: Tensor, lazy: LazyTensor, *sizes: Any) -> Any:
    """The classes come last, before and after."""
    if lazy.classes_at != lazy.dim() - 1 or form.shape[-1:] != lazy.shape[-1:] or not lazy.numel():
        return None
    rows, *others = lazy.parts
    return (rows.reshape(*form.shape[:-1], rows.shape[-1]), *others), form.dim() - 1


def _rearranged(func: Any, form: Tensor, lazy: LazyTensor, *args: Any, **kwargs: Any) -> Any:
    """Operations that name no size. Where one class more makes the result one larger, it has the classes."""
    sizes, classes = list(lazy.shape), lazy.shape[lazy.classes_at]
    sizes[lazy.classes_at] += 1
    larger = func(lazy.form.new_empty(sizes), *args, **kwargs)
    at = [i for i, n in enumerate(zip(form.shape, larger.shape, strict=False)) if n == (classes, classes + 1)]
    rows, *others = lazy.parts
    return ((func(rows, *args, **kwargs), *others), at[0]) if at else None


def _padded(func: Any, form: Tensor, lazy: LazyTensor, sizes: Any, dim: int, *args: Any) -> Any:
    """Zeros around the gradient of a slice."""
    dim %= form.dim()
    at = lazy.classes_at + (form.dim() > lazy.dim() and dim <= lazy.classes_at)
    rows, *others = lazy.parts
    sizes = [*sizes[:at], rows.shape[lazy.classes_at], *sizes[at + 1 :]]
    return None if dim == at else ((func(rows, sizes, dim, *args), *others), at)


def _scaled(func: Any, form: Tensor, lazy: LazyTensor, factor: Any) -> Any:
    """By a number, or a tensor of one number."""
    if isinstance(factor, Tensor) and (factor.dim() or isinstance(factor, LazyTensor)):
        return None
    return tuple(func(x, factor) for x in lazy.parts), lazy.classes_at


def _summed(func: Any, form: Tensor, lazy: LazyTensor, other: Any, alpha: Any = None) -> Any:
    """Two gradients of the same logits."""
    is_same = isinstance(other, LazyGradient) and other.memory.inputs.call is lazy.memory.inputs.call
    if not is_same or alpha is not None or (other.shape, other.classes_at) != (lazy.shape, lazy.classes_at):
        return None
    return tuple(map(func, lazy.parts, other.parts)), lazy.classes_at


def _only_shape(func: Any, lazy: LazyTensor, *args: Any, **kwargs: Any) -> Any:
    return func(lazy.form, *args, **{"device": "cpu", **kwargs})


_TABLE: list[tuple[Callable[..., Any], list[Any]]] = [
    (Rule(_same), [aten.detach.default, aten.alias.default]),
    (Rule(_same, copies=True), [aten.clone.default, aten._to_copy.default]),
    (Rule(_reshaped), [aten.view.default, aten._reshape_alias.default]),
    (Rule(_reshaped), [aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims]),
    (Rule(_reshaped, copies=True), [aten._unsafe_view.default]),
    (Rule(_rearranged), [aten.transpose.int, aten.permute.default, aten.unsqueeze.default]),
    # Not of gradients: dweight is that of all rows, and a part of them has a part of it that nobody knows.
    (Rule(_rearranged, of=LazyLogits), [aten.slice.Tensor, aten.select.int]),
    (Rule(_padded, copies=True, of=LazyGradient), [aten.slice_backward.default, aten.select_backward.default]),
    (Rule(_scaled, copies=True, of=LazyGradient), [aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar]),
    (Rule(_summed, copies=True, of=LazyGradient), [aten.add.Tensor]),
    (_only_shape, [aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default]),
    (_only_shape, [aten.rand_like.default, aten.randn_like.default, aten.new_empty.default, aten.new_zeros.default]),
    (_only_shape, [aten.new_empty_strided.default, aten.new_ones.default, aten.new_full.default]),
]
RULES = {operation: rule for rule, operations in _TABLE for operation in operations}
"""Of operations, which are below autograd. Any other takes the values."""


def _of_values(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*tree_map(dense, args), **tree_map(dense, kwargs))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    func: partial(_of_values, func)
    for func in [
        Tensor.numpy, Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage, Tensor._typed_storage, Tensor.__array__,
        Tensor.__dlpack__, Tensor.tolist, Tensor.__deepcopy__, Tensor.__reduce_ex__, Tensor.__repr__, Tensor.__format__,
        Tensor.share_memory_, Tensor.is_shared,
    ]
}  # fmt: skip
"""Of functions, which are above autograd. These go to the memory at once, past RULES; lazy_logits.py adds the loss."""

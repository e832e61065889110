"""Tensors without values, for lazy_logits.py: which operations leave them so, and how the values come into being.

A lazy tensor has a dimension of classes. In its place its `rows` have the features, and an operation that leaves the
classes alone does the same to both: a view of the logits is the logits of a view of hidden. Any other operation gets
the values. Those are made once and kept; a view shares the memory of what it views, so that writing in place works.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..ops._tensors import KERNEL_DTYPES
from ..ops.linear_cross_entropy import logits_of

aten = torch.ops.aten
plain_functions = torch._C.DisableTorchFunctionSubclass


@dataclass
class Uses:
    """How many memories of their own the logits of one call have, and how many of them were filled."""

    num_made: int = 1
    num_computed: int = 0


class Head:
    """The weight and bias of a linear layer, as they were when its logits were made."""

    alive: ClassVar["weakref.WeakSet[Head]"] = weakref.WeakSet()

    def __init__(self, weight: Tensor, bias: Tensor | None, needs: tuple[bool, bool, bool]) -> None:
        self.needs = needs  # whether hidden, weight and bias want a gradient
        self.uses = Uses()
        self._tensors = [weight.detach(), None if bias is None else bias.detach()]
        self._versions = self._current_versions()
        Head.alive.add(self)

    def _current_versions(self) -> list[int | None]:
        return [None if x is None else x._version for x in self._tensors]

    def get(self) -> tuple[Tensor, Tensor | None]:
        if self._current_versions() != self._versions:
            raise RuntimeError(
                "these logits have not been computed yet, and the weight they need has been changed in place since;"
                " look at them before that (logits.sum() is enough)"
            )
        weight, bias = self._tensors
        assert weight is not None
        return weight, bias

    def keep(self, addresses: set[int]) -> None:
        """Copies what is about to be changed."""
        for i, (x, version) in enumerate(zip(self._tensors, self._versions, strict=True)):
            if x is not None and x._version == version and x.data_ptr() in addresses:
                self._tensors[i] = x.clone()
        self._versions = self._current_versions()


class LazyTensor(Tensor):
    """No storage. `rows` may be None for a gradient that hidden does not want."""

    rows: Tensor | None
    classes_at: int
    _kept: Tensor | None
    _view_of: "LazyTensor | None"
    _replay: Callable[[Tensor], Tensor]
    functions: ClassVar[dict[Any, Callable[..., Any]]] = {}
    """Functions of torch that do without the values, unless they return NotImplemented."""

    @classmethod
    def _make(cls, like: Tensor, rows: Tensor | None, classes_at: int) -> Any:
        """like: any tensor of the shape, strides and dtype"""
        with torch.inference_mode(False):  # a view of an ordinary tensor is an ordinary one there, too
            self = Tensor._make_wrapper_subclass(
                cls, like.shape, strides=like.stride(), storage_offset=like.storage_offset(), dtype=like.dtype,
                device=torch.device("cpu"),
            )  # fmt: skip
        self.rows, self.classes_at, self._kept, self._view_of = rows, classes_at, None, None
        return self

    def _fresh(self) -> Tensor:
        """The values in memory of their own."""
        raise NotImplementedError

    def _derived(self, func: Any, like: Tensor, rows: Tensor | None, classes_at: int, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    def derive(self, func: Any, like: Tensor, rows: Tensor | None, classes_at: int, args: Any, kwargs: Any) -> Any:
        """func(self, *args, **kwargs), lazy again and with the shape of `like`."""
        derived = self._derived(func, like, rows, classes_at, args, kwargs)
        if func not in _COPIES:
            derived._view_of, derived._replay = self, lambda values: func(values, *args, **kwargs)
        return derived

    def is_computed(self) -> bool:
        """Whether there are values, which somebody may even have changed since."""
        return self._kept is not None or (self._view_of is not None and self._view_of.is_computed())

    def computed(self) -> Tensor:
        """Plain, and outside of the graph."""
        if self._kept is None:
            with torch.inference_mode(False), torch.no_grad():
                self._kept = self._fresh() if self._view_of is None else self._replay(self._view_of.computed())
        return self._kept

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = cls.functions.get(func)
        if known is not None:
            result = known(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in _OUTSIDE_DISPATCH:
            args, kwargs = tree_map(dense, (args, kwargs))
        with plain_functions():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None and isinstance(args[0], LazyTensor) and not (func in _COPIES and _any_computed(args)):
            result = rule(func, args[0], args[1:], kwargs)
            if result is not NotImplemented:
                return result
        if func in _ONLY_SHAPES:
            args, kwargs = tree_map(_shell, (args, kwargs))
            return func(*args, **kwargs)
        result = func(*tree_map(_computed, args), **tree_map(_computed, kwargs))
        return _as_given(func, args, kwargs, result) if func._schema.is_mutable else result


class LazyLogits(LazyTensor):
    head: Head
    _rows_version: int

    @classmethod
    def make(cls, head: Head, like: Tensor, rows: Tensor, classes_at: int) -> "LazyLogits":
        self = cls._make(like, rows, classes_at)
        self.head, self._rows_version = head, rows._version
        return self

    def _derived(self, func: Any, like: Tensor, rows: Tensor | None, classes_at: int, args: Any, kwargs: Any) -> Any:
        assert rows is not None
        self.head.uses.num_made += func in _COPIES
        return LazyLogits.make(self.head, like, rows, classes_at)

    def _fresh(self) -> Tensor:
        assert self.rows is not None
        if self.rows._version != self._rows_version:
            raise RuntimeError(
                "these logits have not been computed yet, and the input of their layer has been changed in place since;"
                " look at them before that (logits.sum() is enough)"
            )
        weight, bias = self.head.get()
        self.head.uses.num_computed += 1
        rows = self.rows.movedim(self.classes_at, -1)
        flat = logits_of(rows.reshape(-1, rows.shape[-1]), weight, bias)
        values = flat.view(*rows.shape[:-1], len(weight)).movedim(-1, self.classes_at).to(self.dtype)
        if values.stride() == self.stride():
            return values
        return values.new_empty_strided(self.shape, self.stride()).copy_(values)


class LazyGradient(LazyTensor):
    """The gradient of lazy logits: rows is dhidden, and dweight and dbias are the rest of what it stands for."""

    dweight: Tensor | None
    dbias: Tensor | None
    compute: Callable[[], Tensor]

    @classmethod
    def make(
        cls,
        like: Tensor,
        parts: tuple[Tensor | None, Tensor | None, Tensor | None],
        classes_at: int,
        compute: Callable[[], Tensor],
    ) -> "LazyGradient":
        """compute: gives the values, in memory of their own"""
        self = cls._make(like, parts[0], classes_at)
        self.dweight, self.dbias, self.compute = parts[1], parts[2], compute
        return self

    @property
    def parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.rows, self.dweight, self.dbias

    def _derived(self, func: Any, like: Tensor, rows: Tensor | None, classes_at: int, args: Any, kwargs: Any) -> Any:
        parts = (rows, self.dweight, self.dbias)
        return LazyGradient.make(like, parts, classes_at, lambda: func(self._fresh(), *args, **kwargs))

    def _fresh(self) -> Tensor:
        return self.compute()


# ---- rules for what stays lazy -----------------------------------------------------------------------------------


def _like(func: Any, lazy: Tensor, args: Any, kwargs: Any) -> Tensor:
    """The shape, strides and dtype of the result, from tensors without memory."""
    length = (
        lazy.storage_offset() + sum((n - 1) * stride for n, stride in zip(lazy.shape, lazy.stride(), strict=True)) + 1
    )
    memory = torch.empty(max(0, length), dtype=lazy.dtype, device="meta")
    return func(memory.as_strided(lazy.shape, lazy.stride(), lazy.storage_offset()), *args, **kwargs)


def _reshape(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    like = _like(func, lazy, args, kwargs)
    if lazy.classes_at != lazy.dim() - 1 or like.dim() == 0 or like.shape[-1] != lazy.shape[-1] or not lazy.numel():
        return NotImplemented
    rows = None if lazy.rows is None else lazy.rows.reshape(*like.shape[:-1], lazy.rows.shape[-1])
    return lazy.derive(func, like, rows, like.dim() - 1, args, kwargs)


def _narrow(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    """slice and select of another dimension than the classes"""
    dim = (args[0] if args else 0) % lazy.dim()
    if dim == lazy.classes_at:
        return NotImplemented
    like = _like(func, lazy, args, kwargs)
    rows = None if lazy.rows is None else func(lazy.rows, *args, **kwargs)
    is_gone_before = like.dim() < lazy.dim() and dim < lazy.classes_at
    return lazy.derive(func, like, rows, lazy.classes_at - is_gone_before, args, kwargs)


def _widen(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    """slice_backward and select_backward: zeros around a gradient"""
    sizes, dim = list(args[0]), args[1] % len(args[0])
    classes_at = lazy.classes_at + (len(sizes) > lazy.dim() and dim <= lazy.classes_at)
    if not isinstance(lazy, LazyGradient) or dim == classes_at:
        return NotImplemented
    rows = None
    if lazy.rows is not None:
        sizes[classes_at] = lazy.rows.shape[lazy.classes_at]
        rows = func(lazy.rows, sizes, *args[1:], **kwargs)
    return lazy.derive(func, _like(func, lazy, args, kwargs), rows, classes_at, args, kwargs)


def _permute(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    positions = torch.empty(tuple(range(1, lazy.dim() + 1)), device="meta")  # each size tells where it was
    classes_at = list(func(positions, *args, **kwargs).shape).index(lazy.classes_at + 1)
    rows = None if lazy.rows is None else func(lazy.rows, *args, **kwargs)
    return lazy.derive(func, _like(func, lazy, args, kwargs), rows, classes_at, args, kwargs)


def _same(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    return lazy.derive(func, _like(func, lazy, args, kwargs), lazy.rows, lazy.classes_at, args, kwargs)


def _cast(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if kwargs.get("dtype", lazy.dtype) not in KERNEL_DTYPES or kwargs.get("layout") not in (None, torch.strided):
        return NotImplemented
    if device is not None and torch.device(device).type != "cpu":
        return NotImplemented
    return _same(func, lazy, args, {name: x for name, x in kwargs.items() if name not in ("device", "pin_memory")})


def _scale(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    """A gradient and a number, or a tensor of one number."""
    (factor,) = args
    if not isinstance(lazy, LazyGradient) or isinstance(factor, LazyTensor) or kwargs:
        return NotImplemented
    if isinstance(factor, Tensor) and factor.dim():
        return NotImplemented
    rows, dweight, dbias = (None if x is None else func(x, factor) for x in lazy.parts)
    return LazyGradient.make(lazy, (rows, dweight, dbias), lazy.classes_at, lambda: func(lazy._fresh(), factor))


def _add(func: Any, lazy: LazyTensor, args: Any, kwargs: Any) -> Any:
    """Two gradients of the same logits"""
    (other,) = args
    if kwargs or not isinstance(lazy, LazyGradient) or not isinstance(other, LazyGradient):
        return NotImplemented
    if other.shape != lazy.shape or other.dtype is not lazy.dtype or other.classes_at != lazy.classes_at:
        return NotImplemented
    pairs = list(zip(lazy.parts, other.parts, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return NotImplemented
    rows, dweight, dbias = (None if a is None or b is None else a + b for a, b in pairs)
    parts = (rows, dweight, dbias)
    return LazyGradient.make(lazy, parts, lazy.classes_at, lambda: lazy._fresh() + other._fresh())


_RULES: dict[Any, Callable[..., Any]] = {
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten._reshape_alias.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.slice.Tensor: _narrow,
    aten.select.int: _narrow,
    aten.slice_backward.default: _widen,
    aten.select_backward.default: _widen,
    aten.transpose.int: _permute,
    aten.permute.default: _permute,
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.clone.default: _same,
    aten._to_copy.default: _cast,
    aten.mul.Tensor: _scale,
    aten.mul.Scalar: _scale,
    aten.div.Tensor: _scale,
    aten.div.Scalar: _scale,
    aten.add.Tensor: _add,
}
# Those of them whose result has memory of its own. Where the values are there already, they are plain operations.
_COPIES = {
    aten.clone.default, aten._to_copy.default, aten._unsafe_view.default, aten.slice_backward.default,
    aten.select_backward.default, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.add.Tensor,
}  # fmt: skip
# These look at the shape and never at the values.
_ONLY_SHAPES = {
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
    aten.rand_like.default, aten.randn_like.default, aten.new_empty.default, aten.new_empty_strided.default,
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
}  # fmt: skip
# These go to the memory without passing the dispatcher.
_OUTSIDE_DISPATCH = {
    Tensor.numpy, Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage, Tensor._typed_storage, Tensor.__array__,
    Tensor.__dlpack__, Tensor.tolist, Tensor.__deepcopy__, Tensor.__reduce_ex__, Tensor.__repr__, Tensor.__format__,
    Tensor.share_memory_, Tensor.is_shared,
}  # fmt: skip


# ---- values ------------------------------------------------------------------------------------------------------


def _any_computed(args: Any) -> bool:
    return any(x.is_computed() for x in args if isinstance(x, LazyTensor))


def _computed(x: Any) -> Any:
    return x.computed() if isinstance(x, LazyTensor) else x


def _shell(x: Any) -> Any:
    """Memory of the right shape that nobody fills."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu") if isinstance(x, LazyTensor) else x


def _as_given(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """A function that writes in place returns what it was given: the lazy tensors, not their values."""
    given = {id(x._kept): x for x in tree_leaves((args, kwargs)) if isinstance(x, LazyTensor)}
    return tree_map(lambda x: given.get(id(x), x), result)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, lazy):  # type: ignore[no-untyped-def]
        return lazy.computed().detach()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


def dense(x: Any) -> Any:
    """A plain tensor with the values of a lazy one and its place in the graph; anything else as it is."""
    return _Dense.apply(x) if isinstance(x, LazyTensor) else x

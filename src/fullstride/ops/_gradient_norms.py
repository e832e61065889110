"""Sums of squares of gradients, remembered from when they were written, so that the norm need not read them again.

    remember(dweight, sum_of_squares)   # by the product that wrote it, in double, of the values as they were rounded
    recall(p.grad)                      # the sum, or None if it cannot be trusted any more

A sum is trusted while the gradient is what it was: the same storage, alive all the time; the same elements of it; the
same version, which every in-place operation of torch raises, and mark_written() for our kernels. AccumulateGrad makes
the gradient that backward returns p.grad without a copy, in the same storage and with the same counter; if it adds to
an older one instead, that is another version, and where it copies, another storage.

What is written behind autograd's back (`p.grad.data.mul_()`, `dist.all_reduce`, NumPy) raises no version. So a few
bytes of the gradient are compared, too: scaling or averaging changes them unless all are zero. Who changes single
elements that way is not seen; in torch's own view such a gradient has not changed either.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .. import runtime
from ._tensors import is_dense

_SAMPLE = 64  # bytes, at each of four places
_entries: "dict[int, _Entry]" = {}
"""By the address of the first element."""
_most = 1024


class _Entry(NamedTuple):
    storage: StorageWeakRef  # as long as it is held, no other storage can have its address
    address: int  # of the storage
    numel: int
    dtype: torch.dtype
    version: int
    sample: tuple[bytes, ...]
    sum_of_squares: float


def remember(gradient: Tensor, sum_of_squares: float) -> None:
    """After the gradient was written, and marked as written if it was there before. Holds it weakly."""
    if gradient.is_inference() or not is_dense(gradient) or not gradient.numel():
        return  # an inference tensor has no version
    if len(_entries) >= _most:
        _forget_dead()
    storage, address = gradient.untyped_storage(), gradient.data_ptr()
    _entries[address] = _Entry(
        StorageWeakRef(storage),
        storage._cdata,
        gradient.numel(),
        gradient.dtype,
        gradient._version,
        _sample(address, gradient.numel() * gradient.itemsize),
        sum_of_squares,
    )


def want() -> None:
    """Products sum squares from now on, in this process. Said by optimizers that will ask for a norm: what is summed,
    and so the last bits of the norm, then depend on the optimizer alone and not on what happened before."""
    runtime.current().sums_squares = True


def are_wanted() -> bool:
    return runtime.current().sums_squares


def recall(gradient: Tensor) -> float | None:
    """The sum that was remembered for this gradient, if it is still its own."""
    if not _entries or type(gradient) is not Tensor:
        return None
    address = gradient.data_ptr()
    entry = _entries.get(address)
    if entry is None:
        return None
    if (
        gradient.untyped_storage()._cdata == entry.address
        and not entry.storage.expired()
        and gradient.numel() == entry.numel
        and gradient.dtype is entry.dtype
        and not gradient.is_inference()
        and gradient._version == entry.version
        and is_dense(gradient)
        and _sample(address, entry.numel * gradient.itemsize) == entry.sample
    ):
        return entry.sum_of_squares
    del _entries[address]
    return None


def _sample(address: int, size: int) -> tuple[bytes, ...]:
    length = min(_SAMPLE, size)
    return tuple(ctypes.string_at(address + (size - length) * place // 3, length) for place in range(4))


def _forget_dead() -> None:
    global _most
    for address, entry in list(_entries.items()):
        if entry.storage.expired():
            _entries.pop(address, None)
    _most = max(1024, 2 * len(_entries))

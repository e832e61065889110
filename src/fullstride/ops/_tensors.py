"""What stands between torch tensors and the C ABI: which tensors kernels take, their layout and their pointers.

A public wrapper that costs little on small tensors asks two questions, and its Function only adds what backward needs
to a plain function that calls the kernel:

    if not takes_kernel(x, weight):
        return x_reference(x, weight)
    if needs_grad(x, weight):
        return XFunction.apply(x, weight)  # its forward: y, stats = _forward(x, weight); ctx.save_for_backward(...)
    return _forward(x, weight)[0]

Every Python call and every small tensor counts here: benchmarks/call_overhead.py shows what a wrapper costs. Take one
new_empty for several small outputs and compute the addresses. It is x.new_empty(..., dtype=...) and not torch.empty,
which follows the default dtype and device that the user has set.
"""

from collections.abc import Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from .. import _native

KERNEL_DTYPES = (torch.float32, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)
_are_transforms_active = torch._C._are_functorch_transforms_active
_is_tracing = torch._C._is_tracing  # what torch.jit.is_tracing asks


def takes_kernel(*tensors: Tensor | None) -> bool:
    """Whether kernels can work on these: plain dense CPU tensors, all fp32 or all bf16, and a library to call.

    While torch.compile or torch.jit traces, under a torch.func transform and in forward-mode differentiation the
    answer is no: those see through the references and not through ctypes. Nor do kernels see that a view is negated.
    """
    if torch.compiler.is_compiling() or _are_transforms_active() or forward_ad._current_level >= 0 or _is_tracing():
        return False
    dtype = None
    for tensor in tensors:
        if tensor is None:
            continue
        if dtype is None:
            dtype = tensor.dtype
            if dtype not in KERNEL_DTYPES:
                return False
        if (
            tensor.dtype is not dtype
            or type(tensor) not in _PLAIN
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or tensor.is_neg()  # a conjugate is complex, and no such dtype comes this far
        ):
            return False
    return _native.available()


def as_own(view: Tensor) -> Tensor:
    """The same memory as a tensor that is no view: torch lets nobody write to a view that a Function returned."""
    storage: Any = view.untyped_storage()  # the stubs do not know this form
    return view.new_empty(0).set_(storage, view.storage_offset(), view.shape, view.stride())


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd has to record an op on these. When not, calling its Function would only cost time."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def mark_written(tensors: Iterable[Tensor]) -> None:
    """Tells autograd that a kernel wrote these: an op that kept one for its backward pass then raises, as in torch."""
    increment_version([tensor for tensor in tensors if not tensor.is_inference()])  # those have no version


def as_rows(x: Tensor) -> tuple[Tensor, int, int]:
    """x made dense, with its number of rows and columns, the last dimension being the columns."""
    cols = x.shape[-1]
    rows = x.numel() // cols if cols else x.shape[:-1].numel()
    return x.contiguous(), rows, cols


def is_dense(x: Tensor) -> bool:
    """Whether its elements fill one stretch of memory, each once, in whatever order of dimensions."""
    if x.is_contiguous():
        return True
    strides = x.stride()
    return x.permute(sorted(range(x.dim()), key=strides.__getitem__, reverse=True)).is_contiguous()


@overload
def contiguous(x: Tensor) -> Tensor: ...
@overload
def contiguous(x: Tensor | None) -> Tensor | None: ...
def contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def pointer(x: Tensor | None) -> int | None:
    """The address of the first element; NULL for no tensor."""
    return None if x is None else x.data_ptr()


def kernel_dtype(x: Tensor) -> int:
    return _native.DTYPES[x.dtype]

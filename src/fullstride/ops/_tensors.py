"""What stands between torch tensors and the C ABI: which tensors kernels take, their layout and their pointers."""

from typing import overload

import torch
from torch import Tensor

from .. import _native

KERNEL_DTYPES = (torch.float32, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)


def takes_kernel(*tensors: Tensor | None) -> bool:
    """Whether kernels can work on these: plain dense CPU tensors, all fp32 or all bf16, and a library to call.

    While torch.compile traces, the answer is no: it sees through the references and not through ctypes.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    return all(
        type(tensor) in _PLAIN
        and tensor.dtype in KERNEL_DTYPES
        and tensor.dtype == present[0].dtype
        and tensor.is_cpu
        and tensor.layout == torch.strided
        for tensor in present
    ) and (not torch.compiler.is_compiling() and _native.available())


def as_rows(x: Tensor) -> tuple[Tensor, int, int]:
    """x made dense, with its number of rows and columns, the last dimension being the columns."""
    cols = x.shape[-1]
    rows = x.numel() // cols if cols else x.shape[:-1].numel()
    return x.contiguous(), rows, cols


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

"""Tensors as a safetensors file, written and read a piece at a time.

    8 bytes     length of the header, little-endian
    header      JSON: name -> dtype, shape, data_offsets; "__metadata__" -> strings; padded with spaces
    data        the tensors one after the other, without gaps

The package of that name wants all bytes in one object, or a path that it opens itself; here they are hashed while they
are written, and nothing is held twice. A tensor with several names (tied weights) is stored once; the further names are
in the metadata, under "aliases". https://huggingface.co/docs/safetensors
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import durable

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA, _ALIASES = "__metadata__", "aliases"
_BF16_EXPONENT = 0x7F80  # all of its bits are set in NaN and infinity, and in nothing else


class Layout:
    """Where each tensor goes in a file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        kept, aliases = _without_aliases(tensors)
        if _METADATA in tensors:
            raise ValueError(f"expected any name but {_METADATA!r} of a tensor: the format keeps it for itself")
        for name, tensor in kept.items():
            if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
                raise TypeError(f"expected a dense tensor of {', '.join(_NAMES.values())}, got {name!r} of"
                                f" {tensor.dtype} and {tensor.layout}")  # fmt: skip
        # The largest elements first: each tensor then starts at a multiple of its element's size.
        names = sorted(kept, key=lambda name: -kept[name].element_size())
        self.tensors = [kept[name] for name in names]
        metadata = {"format": "pt", **({_ALIASES: json.dumps(aliases)} if aliases else {})}
        header: dict[str, Any] = {_METADATA: metadata}
        end = 0
        for name in names:
            tensor, begin = kept[name], end
            end = begin + tensor.nbytes
            header[name] = {
                "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end],
            }  # fmt: skip
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text
        self.size = len(self.header) + end

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes of the file, without copies of tensors that lie in memory as they do in the file."""
        yield self.header
        for tensor in self.tensors:
            yield _as_bytes(tensor)


def read(reader: durable.Reader) -> dict[str, Tensor]:
    """The tensors, each in memory of its own. ValueError or EOFError for what is not such a file."""
    header = json.loads(reader.read(int.from_bytes(reader.read(8), "little")))
    metadata = header.pop(_METADATA, {})
    tensors: dict[str, Tensor] = {}
    end, size = 0, reader.left
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, (start, end) = end, entry["data_offsets"]
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        if any(type(n) is not int or n < 0 for n in shape) or start != begin or end > size:
            raise ValueError(f"{name!r} of shape {shape} cannot be at bytes {start} to {end}")
        if end - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name!r} of shape {shape} and {dtype} cannot have {end - start} bytes")
        tensors[name] = torch.empty(shape, dtype=dtype, device="cpu")
        reader.fill(_as_bytes(tensors[name]))
    if reader.left:
        raise ValueError(f"{reader.left} bytes belong to no tensor")
    for name, other in json.loads(metadata.get(_ALIASES, "{}")).items():
        tensors[name] = tensors[other]
    return tensors


def is_finite(tensor: Tensor) -> bool:
    """Whether there is no NaN and no infinity, by one core: numpy takes no threads away from training."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    data = _as_bytes(tensor)
    for start in range(0, len(data), durable.PIECE // 4):
        part = data[start : start + durable.PIECE // 4]
        if tensor.dtype is torch.bfloat16:
            finite = ((np.frombuffer(part, np.int16) & _BF16_EXPONENT) != _BF16_EXPONENT).all()
        elif tensor.dtype in (torch.float16, torch.float32, torch.float64):
            finite = np.isfinite(np.frombuffer(part, f"f{tensor.element_size()}")).all()
        else:
            values = torch.frombuffer(part, dtype=tensor.dtype)
            finite = torch.isfinite(values if tensor.is_complex() else values.float()).all()
        if not finite:
            return False
    return True


def identity(tensor: Tensor) -> tuple[Any, ...] | None:
    """The same for two tensors that are one under two names; None for one without elements, which shares nothing."""
    if not tensor.numel():
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj()


def _without_aliases(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors under their first names, and the first name of each further one."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, tensor in tensors.items():
        key = identity(tensor) if tensor.layout is torch.strided else None
        if key is not None and key in first:
            aliases[name] = first[key]
        else:
            kept[name] = tensor
            first[key] = name  # of those without a key nobody asks
    return kept, aliases


def _as_bytes(tensor: Tensor) -> memoryview:
    """Its elements in order, shared where they lie in memory that way."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data

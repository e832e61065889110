"""llama2.c's .bin files: what its run.c loads, and the tokenizer.bin beside them.

Version 0, the one that is written: seven int32 (width, hidden, layers, heads, kv_heads, vocabulary, context; the
vocabulary negative if the head is not tied), then all tensors in fp32, each kind for all layers, with two tables of
rotary angles that today's run.c skips. Version 1 has a header of 256 bytes and another order. Pairs are (2i, 2i + 1).
"""

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import placing
from .saved_model import (
    HEAD,
    SavedModel,
    check_by_scores,
    check_tokenizer,
    checked_shape,
    halved,
    interleaved,
    sizes,
    with_head,
    writable,
)

if TYPE_CHECKING:
    from torch import Tensor

TOKENIZER = "tokenizer.bin"
MAGIC = struct.pack("<I", 0x616B3432)  # "ak42": of versions 1 and 2
_HEADER = struct.Struct("<7i")
_LATER_SIZE = 256
_EPS, _ROPE_BASE = 1e-5, 10000.0  # constants in run.c
_MATRICES = ("attention.query", "attention.key", "attention.value", "attention.output")
_MLP = ("mlp.gate", "mlp.down", "mlp.up")
_TABLES = "rotary tables"


def shape_of(path: Path) -> dict[str, Any]:
    return _open(path)[0]


def read(path: Path) -> SavedModel:
    import numpy as np
    import torch

    shape, version, start = _open(path)
    # Copy on write: pages are read when they are used, and who changes a weight does not change the file.
    data = np.memmap(path, dtype="<f4", mode="c", offset=start)
    tensors, expected, at = {}, sizes(shape), 0
    for name in _order(shape, version):
        count = _num_numbers(shape, expected, name)
        if name != _TABLES:
            tensors[name] = halved(name, torch.from_numpy(data[at : at + count]).view(expected[name]), shape)
        at += count
    return SavedModel(shape, with_head(shape, tensors), _tokenizer(path, shape))


def write(path: Path, saved: SavedModel, replace: bool = False) -> list[Path]:
    """Version 0, and its tokenizer beside it. A tokenizer.bin of the same content may be there already."""
    from .. import tokens

    shape, tensors = saved.shape, writable(path, saved)
    for name, value in (("eps", _EPS), ("rope_base", _ROPE_BASE)):
        if shape[name] != value:
            what = f"llama2.c computes with {name} {value:g}, the model with {shape[name]:g}"
            raise ValueError(f"{path}: {what}; a .gguf file or a Hugging Face folder keeps it")
    check_by_scores(path, saved.tokenizer)
    placing.refuse_existing(path, replace)
    with placing.aside(path) as folder:
        files = {}
        if saved.tokenizer is not None:
            pieces = tokens.Pieces(saved.tokenizer.pieces(), saved.tokenizer.bos, saved.tokenizer.eos)
            written, target = pieces.save(folder), path.with_name(TOKENIZER)
            if path.name == TOKENIZER:
                raise ValueError(f"{path}: this is the tokenizer's name; give the model another, such as model.bin")
            if not target.is_file() or target.read_bytes() != written.read_bytes():
                placing.refuse_existing(target, replace)
                files[written] = target
        with open(folder / "model", "wb") as file:
            for piece in _pieces(shape, tensors):
                file.write(piece)
        placing.place(files | {folder / "model": path}, replace)
    return [path] if saved.tokenizer is None else [path, path.with_name(TOKENIZER)]


def _pieces(shape: Mapping[str, Any], tensors: "Mapping[str, Tensor]") -> Iterator[bytes | memoryview]:
    """The file from its start to its end; no tensor but the one at hand is copied."""
    from ..models.llama import rotary_tables

    vocabulary = shape["vocabulary"] if shape["tied"] else -shape["vocabulary"]
    counts = [shape[name] for name in ("width", "hidden", "layers", "heads", "kv_heads")]
    yield _HEADER.pack(*counts, vocabulary, shape["context"])
    for name in _order(shape, 0):
        if name == _TABLES:
            for table in rotary_tables(shape["context"], shape["width"] // shape["heads"], _ROPE_BASE):
                yield table.numpy().astype("<f4", copy=False).data
        else:
            yield interleaved(name, tensors[name], shape).cpu().numpy().astype("<f4", copy=False).data


def _open(path: Path) -> tuple[dict[str, Any], int, int]:
    """The shape, the version, and where the weights start; the size of the file is as these say."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LATER_SIZE)
    version, start, header = 0, _HEADER.size, head[: _HEADER.size]
    if head[:4] == MAGIC:
        if len(head) < _LATER_SIZE:
            raise ValueError(f"{path}: expected a header of {_LATER_SIZE} bytes, got {len(head)}; it is cut short")
        version, *_ = struct.unpack_from("<i", head, 4)
        if version == 2:
            advice = "its weights are rounded; give the version 0 or 1 that it was made from"
            raise ValueError(f"{path}: expected llama2.c's version 0 or 1, got version 2, which is int8: {advice}")
        if version != 1:
            raise ValueError(f"{path}: expected llama2.c's version 0 or 1, got version {version}")
        start, header = _LATER_SIZE, head[8 : 8 + _HEADER.size]
    if len(header) < _HEADER.size:
        raise ValueError(f"{path}: expected a header of {_HEADER.size} bytes, got {len(header)}; the file is cut short")
    width, hidden, layers, heads, kv_heads, vocabulary, context = _HEADER.unpack(header)
    tied = vocabulary > 0 if version == 0 else bool(head[8 + _HEADER.size])
    shape: dict[str, Any] = {
        "vocabulary": abs(vocabulary) if version == 0 else vocabulary, "width": width, "layers": layers, "heads": heads,
        "kv_heads": kv_heads, "hidden": hidden, "context": context, "tied": tied, "rope_base": _ROPE_BASE, "eps": _EPS,
    }  # fmt: skip
    try:
        shape = checked_shape(path, shape)
        expected = start + 4 * _total(shape, version)
    except (ValueError, OverflowError):
        found = f"a file that begins with {' '.join(map(str, _HEADER.unpack(header)))}, which are no sizes of a Llama"
        raise ValueError(f"{path}: expected a llama2.c checkpoint, got {found}") from None
    if size != expected:
        reason = "the file is cut short" if size < expected else "it is not a llama2.c checkpoint, or not of this model"
        raise ValueError(f"{path}: expected {expected:,} bytes, as its header says, got {size:,}; {reason}")
    return shape, version, start


def _total(shape: Mapping[str, Any], version: int) -> int:
    """Numbers in the file. By layer: a damaged header may say that there are 2^31."""
    one = {**shape, "layers": 1}
    expected = sizes(one)
    numbers = {name: _num_numbers(one, expected, name) for name in _order(one, version)}
    return sum(count * (shape["layers"] if name.startswith("layers.") else 1) for name, count in numbers.items())


def _order(shape: Mapping[str, Any], version: int) -> Iterator[str]:
    """The names of the tensors as the file has them."""

    def each(*kinds: str) -> Iterator[str]:
        for kind in kinds:
            yield from (f"layers.{i}.{kind}.weight" for i in range(shape["layers"]))

    if version == 0:
        yield "embedding.weight"
        yield from each("attention_norm", *_MATRICES, "mlp_norm", *_MLP)
        yield "norm.weight"
        yield _TABLES
    else:
        yield from each("attention_norm", "mlp_norm")
        yield from ("norm.weight", "embedding.weight")
        yield from each(*_MATRICES, *_MLP)
    if not shape["tied"]:
        yield HEAD


def _num_numbers(shape: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], name: str) -> int:
    if name == _TABLES:
        return int(shape["context"] * (shape["width"] // shape["heads"]))
    return math.prod(expected[name])


def _tokenizer(path: Path, shape: Mapping[str, Any]) -> Any:
    """tokenizer.bin, or tok512.bin as llama2.c names those of another size."""
    from .. import tokens

    for name in (f"tok{shape['vocabulary']}.bin", TOKENIZER):
        place = path.with_name(name)
        if place.is_file() and place != path:
            tokenizer = tokens.load(place)
            check_tokenizer(path, shape, tokenizer, place)
            return tokenizer
    return None

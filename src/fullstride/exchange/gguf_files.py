"""GGUF, the one file that llama.cpp and its kin read, by the `gguf` package.

Written in fp32. What is read may be quantised, if the package can widen it. Rotary pairs are (2i, 2i + 1), as
llama.cpp's own converter has them for this architecture.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import gguf_tokenizer, placing
from .saved_model import (
    HEAD,
    SavedModel,
    check_by_scores,
    check_sizes,
    check_tokenizer,
    checked_shape,
    halved,
    interleaved,
    renamed,
    sizes,
    with_head,
    writable,
)

MAGIC = b"GGUF"
_ARCHITECTURE = "llama"
_PLAIN_ROPE = "expected plain rotary positions"
_NAMES = {
    "embedding.": "token_embd.", "layers.": "blk.", "norm.": "output_norm.", "head.": "output.",
    ".attention_norm.": ".attn_norm.", ".mlp_norm.": ".ffn_norm.",
    ".attention.query.": ".attn_q.", ".attention.key.": ".attn_k.",
    ".attention.value.": ".attn_v.", ".attention.output.": ".attn_output.",
    ".mlp.gate.": ".ffn_gate.", ".mlp.up.": ".ffn_up.", ".mlp.down.": ".ffn_down.",
}  # fmt: skip
theirs = functools.partial(renamed, names=_NAMES)
"""The name that llama.cpp has for a weight."""
_COUNTS = {
    "width": "embedding_length", "layers": "block_count", "heads": "attention.head_count",
    "hidden": "feed_forward_length", "context": "context_length",
}  # fmt: skip


def shape_of(path: Path) -> dict[str, Any]:
    return _shape(path, _open(path))


def read(path: Path) -> SavedModel:
    import torch

    reader = _open(path)
    shape = _shape(path, reader)
    expected = {theirs(name): name for name in sizes(shape)}
    found = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    if "rope_freqs.weight" in found:
        raise ValueError(f"{path}: {_PLAIN_ROPE}, got scaled ones (a tensor rope_freqs.weight); it cannot be read")
    check_sizes(path, {name: sizes(shape)[ours] for name, ours in expected.items()}, found)
    tensors = {}
    for tensor in reader.tensors:
        name = expected[tensor.name]
        try:
            values = _package().dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            found_type, advice = tensor.tensor_type.name, "give a file in F32, F16, BF16 or Q8_0"
            raise ValueError(f"{path}: {tensor.name} is {found_type}, which cannot be widened; {advice}") from None
        tensors[name] = halved(name, torch.from_numpy(values).view(found[tensor.name]), shape)
    tokenizer = gguf_tokenizer.read(path, functools.partial(_field, path, reader))
    check_tokenizer(path, shape, tokenizer, "its own")
    return SavedModel(shape, with_head(shape, {name: tensors[name] for name in sizes(shape)}), tokenizer)


def write(path: Path, saved: SavedModel, replace: bool = False) -> list[Path]:
    import numpy as np

    package, shape, tensors = _package(), saved.shape, writable(path, saved)
    check_by_scores(path, saved.tokenizer)
    placing.refuse_existing(path, replace)
    with placing.aside(path) as folder:
        writer = package.GGUFWriter(folder / "model", _ARCHITECTURE)
        try:
            _add_shape(writer, shape)
            gguf_tokenizer.add(writer, saved.tokenizer)
            for name, tensor in tensors.items():
                writer.add_tensor_info(theirs(name), tuple(tensor.shape), np.dtype(np.float32), tensor.nbytes)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name, tensor in tensors.items():
                writer.write_tensor_data(interleaved(name, tensor, shape).cpu().numpy())
        except OSError as error:  # numpy's, when not all could be written, has no number and no reason
            raise error if error.errno else OSError(f"is the disk full? ({error})") from None
        finally:
            writer.close()
        placing.place({folder / "model": path}, replace)
    return [path]


def _add_shape(writer: Any, shape: Mapping[str, Any]) -> None:
    writer.add_type("model")
    writer.add_file_type(0)  # all tensors in fp32
    writer.add_vocab_size(shape["vocabulary"])
    writer.add_embedding_length(shape["width"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["hidden"])
    writer.add_context_length(shape["context"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_layer_norm_rms_eps(shape["eps"])
    writer.add_rope_dimension_count(shape["width"] // shape["heads"])
    writer.add_rope_freq_base(shape["rope_base"])


def _open(path: Path) -> Any:
    with path.open("rb") as file:
        head = file.read(8)
    version = int.from_bytes(head[4:8], "little")
    if len(head) == 8 and version not in (2, 3):
        other = "one of a machine of the other byte order" if version & 0xFFFF == 0 else f"version {version}"
        raise ValueError(f"{path}: expected GGUF of version 2 or 3, got {other}")
    reader = _reader()
    try:
        # Copy on write: pages are read when they are used, and who changes a weight does not change the file.
        return reader(path, "c")
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())
        reason = words if words.startswith("expected") else "it ends too soon"  # numpy's words help nobody
        raise ValueError(f"{path}: expected GGUF, got a file that is cut short or damaged ({reason})") from None


def _reader() -> Any:
    """The package's own, that ends where the file does: it takes what is beyond for empty, and an array whose damaged
    length is 2^60 for that many empty numbers."""
    base: Any = _package().GGUFReader

    class Reader(base):
        def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **options: Any) -> Any:
            found = super()._get(offset, dtype, count, *more, **options)
            if len(found) < int(count):
                raise IndexError(f"expected more at byte {offset}")
            return found

    return Reader


def _field(path: Path, reader: Any, name: str, default: Any = None) -> Any:
    field = reader.get_field(name)
    if field is None:
        if default is None:
            raise ValueError(f"{path}: expected {name} in its metadata, got none; the file is incomplete")
        return default
    try:
        return field.contents()
    except (IndexError, UnicodeDecodeError):
        raise ValueError(f"{path}: expected a value of {name}, got a damaged one") from None


def _shape(path: Path, reader: Any) -> dict[str, Any]:
    architecture = _field(path, reader, "general.architecture")
    if architecture != _ARCHITECTURE:
        raise ValueError(f"{path}: expected architecture llama, got {architecture!r}; other models are not read")

    def of(name: str, default: Any = None) -> Any:
        return _field(path, reader, f"{_ARCHITECTURE}.{name}", default)

    shape = {name: of(other) for name, other in _COUNTS.items()}
    names = {tensor.name: tensor for tensor in reader.tensors}
    if theirs("embedding.weight") not in names:
        raise ValueError(f"{path}: expected a tensor {theirs('embedding.weight')}, got none; the file is incomplete")
    shape["vocabulary"] = int(names[theirs("embedding.weight")].shape[-1])
    shape["kv_heads"] = of("attention.head_count_kv", shape["heads"])
    shape["tied"] = theirs(HEAD) not in names
    shape["rope_base"] = _shortest(of("rope.freq_base", 10000.0))
    shape["eps"] = _shortest(of("attention.layer_norm_rms_epsilon"))
    shape = checked_shape(path, shape)
    head_dim = shape["width"] // shape["heads"]
    for name in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if of(name, head_dim) != head_dim:
            raise ValueError(f"{path}: expected {name} {head_dim}, as width / heads, got {of(name)}; it cannot be read")
    scaling, experts = of("rope.scaling.type", "none"), of("expert_count", 0)
    if scaling != "none":
        raise ValueError(f"{path}: {_PLAIN_ROPE}, got scaling of type {scaling!r}; it cannot be read")
    if experts:
        raise ValueError(f"{path}: expected a model without experts, got {experts}; it cannot be read")
    return shape


def _shortest(value: Any) -> Any:
    """1e-5, where the file has the nearest fp32 and that read as fp64 would be 9.99999974e-06."""
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value


def _package() -> Any:
    try:
        return importlib.import_module("gguf")
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed; get it with: pip install 'fullstride[gguf]'") from None

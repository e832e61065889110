"""Models of other programs, read and written, weights exact: one file a format. No torch before something is read."""

from pathlib import Path
from types import ModuleType
from typing import Any

from .saved_model import SavedModel

__all__ = ["FORMATS", "SavedModel", "is_safetensors", "read", "shape_of", "write"]

FORMATS = {
    ".bin": "llama2.c, with tokenizer.bin beside it",
    ".gguf": "llama.cpp and its kin",
    "": "a folder as Hugging Face has it: config.json, model.safetensors, tokenizer files",
}
"""What can be written, by the end of the name."""

_KINDS = "a llama2.c .bin, a Hugging Face folder, a .gguf, or a .safetensors of `fullstride export`"


def read(path: Path) -> SavedModel:
    """Anything of FORMATS; known by its content, not by its name."""
    saved: SavedModel = _format_of(path).read(path)
    return saved


def shape_of(path: Path) -> dict[str, Any]:
    """The arguments of models.llama.build, without recompute. No weights are read."""
    shape: dict[str, Any] = _format_of(path).shape_of(path)
    return shape


def write(path: Path, saved: SavedModel, replace: bool = False) -> list[Path]:
    """In the format that the end of the name says, whole or not at all. Returns the files written."""
    from . import gguf_files, huggingface, llama2c

    formats: dict[str, ModuleType] = {".bin": llama2c, ".gguf": gguf_files, "": huggingface}
    kind = "" if path.is_dir() else path.suffix
    if kind not in formats:
        known = "; ".join(f"{suffix or 'no end'}: {words}" for suffix, words in FORMATS.items())
        raise ValueError(
            f"{path}: expected a name that ends with .bin, .gguf or .safetensors, or that of a folder ({known};"
            " .safetensors: by `fullstride export`)"
        )
    written: list[Path] = formats[kind].write(path, saved, replace)
    return written


def is_safetensors(path: Path) -> bool:
    """Whether it is one file of safetensors, which does not say its shape. ValueError for what is no model."""
    return _kind_of(path) is None


def _format_of(path: Path) -> ModuleType:
    found = _kind_of(path)
    if found is None:
        raise ValueError(f"{path}: weights without a config; give the Hugging Face folder that they belong to")
    return found


def _kind_of(path: Path) -> ModuleType | None:
    """None: a file of safetensors."""
    from . import gguf_files, huggingface, llama2c

    if path.is_dir():
        if not (path / huggingface.CONFIG).is_file():
            run = (path / "config.yaml").is_file()
            hint = "it is a run: `fullstride export` writes its weights" if run else f"expected {_KINDS}"
            raise ValueError(f"{path}: a folder without {huggingface.CONFIG}; {hint}")
        return huggingface
    if not path.exists():
        raise ValueError(f"no file {path}: expected {_KINDS}")
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise ValueError(f"{path}: an empty file; expected {_KINDS}")
    if head[:4] == gguf_files.MAGIC:
        return gguf_files
    if head[:4] == b"PK\x03\x04" or (head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        again = "save it with transformers' save_pretrained(), which writes safetensors"
        raise ValueError(f"{path}: a pickle of PyTorch, which can run any code when it is read; {again}")
    if path.suffix == ".safetensors":
        return None
    if path.suffix == ".bin":
        return llama2c
    if head.lstrip()[:1] == b"{" and path.suffix == ".json":
        raise ValueError(f"{path}: a part of a Hugging Face folder; give the folder")
    raise ValueError(f"{path}: no model that is known here; expected {_KINDS}")

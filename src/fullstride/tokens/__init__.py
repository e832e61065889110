"""Tokenizers: characters, and Llama's pieces by sentencepiece or from the files of other programs. No torch in here."""

from pathlib import Path

from . import bpe, characters, llama2c_file
from .bpe import BPE
from .characters import Characters
from .pieces import Pieces
from .tokenizer import Piece, Tokenizer

__all__ = ["BPE", "FILES", "Characters", "Piece", "Pieces", "Tokenizer", "find", "load"]

FILES = (characters.FILE, bpe.FILE, llama2c_file.FILE)


def find(path: Path) -> Path | None:
    """The file, or the tokenizer's file in a folder, if it has one."""
    if path.is_dir():
        return next((path / name for name in FILES if (path / name).is_file()), None)
    return path


def load(path: Path) -> Tokenizer:
    """A file, known by the end of its name, or the one that is in a folder."""
    found = find(path)
    if found is None:
        raise FileNotFoundError(f"no tokenizer in {path}: expected {', '.join(FILES[:-1])} or {FILES[-1]}")
    if not found.is_file():
        raise FileNotFoundError(f"no tokenizer {found}: there is no such file")
    if found.suffix == ".json":
        return characters.read(found)
    if found.suffix == ".model":
        return bpe.read(found)
    if found.suffix == ".bin":
        return Pieces(llama2c_file.read(found), llama2c_file.BOS, llama2c_file.EOS)
    raise ValueError(f"{found}: expected a tokenizer, a file that ends with .json, .model or .bin")

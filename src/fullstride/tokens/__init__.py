"""Tokenizers: characters, and Llama's pieces by sentencepiece or from the files of other programs. No torch in here."""

from pathlib import Path

from . import characters
from .characters import Characters
from .tokenizer import Piece, Tokenizer

__all__ = ["FILES", "Characters", "Piece", "Tokenizer", "find", "load"]

FILES = (characters.FILE, "tokenizer.model", "tokenizer.bin")


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
    raise ValueError(f"{found}: expected a tokenizer, a file that ends with .json, .model or .bin")

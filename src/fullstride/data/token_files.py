"""Files of tokens: numbers of two bytes, little-endian, one after the other, as llama2.c and nanoGPT have them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DTYPE = np.dtype("<u2")
MOST_TOKENS = 2**16
_BLOCK = 8 << 20  # tokens looked at at a time
_SEEN = 1 << 16  # bytes at both ends of a file that tell it from others


@dataclass(frozen=True)
class Span:
    """Some of the tokens of a file, which is memory-mapped when it is needed."""

    path: Path
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def map(self) -> NDArray[np.uint16]:
        size = num_tokens(self.path)
        if size < self.stop:
            raise ValueError(f"{self.path}: has {size:,} tokens, and had {self.stop:,}: it was changed while in use")
        tokens: NDArray[np.uint16] = np.memmap(self.path, DTYPE, mode="r")[self.start : self.stop]
        return tokens


def find(path: Path, valid_share: float) -> tuple[tuple[Span, ...], tuple[Span, ...]] | None:
    """The tokens to train on and those held out; None if there are none, but text perhaps.

    nanoGPT's train.bin and val.bin (or valid.bin); llama2.c's shards, the first of which is held out; of a single file
    the end is.
    """
    if path.is_file():
        return _cut(whole(path), valid_share) if path.suffix == ".bin" else None
    for name in ("val.bin", "valid.bin"):
        if (path / "train.bin").is_file() and (path / name).is_file():
            return (whole(path / "train.bin"),), (whole(path / name),)
    shards = sorted(file for file in path.glob("*.bin") if file.name != "tokenizer.bin")
    if not shards or next(path.rglob("*.txt"), None) is not None:
        return None
    if len(shards) == 1:
        return _cut(whole(shards[0]), valid_share)
    return tuple(map(whole, shards[1:])), (whole(shards[0]),)


def _cut(span: Span, valid_share: float) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    cut = span.stop - round(len(span) * valid_share)
    return (Span(span.path, span.start, cut),), (Span(span.path, cut, span.stop),)


def whole(path: Path) -> Span:
    return Span(path, 0, num_tokens(path))


def num_tokens(path: Path) -> int:
    """Whatever is wrong with the size of a file is a ValueError that names it."""
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"{path}: expected tokens, two bytes each; the file is empty: make it anew")
    if size % 2:
        raise ValueError(
            f"{path}: expected tokens, two bytes each, got {size:,} bytes, an odd number: it was cut short, or is "
            "no file of tokens"
        )
    return size // 2


def check(spans: Sequence[Span], vocabulary: int) -> None:
    """That all tokens are below `vocabulary`. Reads the files once."""
    for span in spans:
        for first, part in _blocks(span):
            if part.max() >= vocabulary:
                place = first + int(np.argmax(part >= vocabulary))
                raise ValueError(beyond(span, place, int(part[place - first]), vocabulary))


def beyond(span: Span, place: int, token: int, vocabulary: int) -> str:
    """`place` counts from the start of the span."""
    return (
        f"{span.path}: token {token} at byte {2 * (span.start + place)}: expected one below {vocabulary}, the "
        "vocabulary: the file was made with another tokenizer, give that or --data.vocabulary, or is no file of tokens"
    )


def fingerprint(spans: Sequence[Span]) -> str:
    """By sizes and both ends: the files may be larger than it is worth to read them for it."""
    digest = hashlib.sha256()
    for span in spans:
        digest.update(f"{span.path.name} {span.start} {span.stop} {span.path.stat().st_size}\n".encode())
        tokens = span.map()
        digest.update(tokens[: _SEEN // 2].tobytes() + tokens[-_SEEN // 2 :].tobytes())
    return digest.hexdigest()


def _blocks(span: Span) -> list[tuple[int, NDArray[np.uint16]]]:
    tokens = span.map()
    return [(first, tokens[first : first + _BLOCK]) for first in range(0, len(tokens), _BLOCK)]

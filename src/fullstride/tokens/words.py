"""A text cut where no piece can go on, its parts encoded once each and remembered.

A piece of Llama's kind may begin with spaces, but has none after another character, and a new line is a piece alone. So
a word with the spaces before it is encoded as if nothing else were there; most words of a text come again and again.
Seconds of CPU time for a megabyte of Shakespeare, 4,096 pieces, an AMD EPYC core: pieces.py 0.7 at first and 0.2 when
the words are known; sentencepiece 0.3 and 0.2; and 0.3 if it is given lines.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

from .tokenizer import NUM_BYTES, SPACE, Piece, check_text

_MOST_REMEMBERED = 1 << 18  # words
_BY_WORDS = re.compile(f" *[^ \n{SPACE}]+|\n|{SPACE}| +")
_WHOLE = re.compile(f"[^{SPACE}]+|{SPACE}")  # the sign itself is no space: it is made of bytes
_ONE_WORD = re.compile(" *[^ \n]*|\n")


class Words:
    def __init__(self, pieces: Sequence[Piece], encode: Callable[[list[str]], list[list[int]]], prefix: bool) -> None:
        """encode: the ids of each of some texts, no space put before any; prefix: one before the start of a text."""
        self._encode, self._prefix = encode, prefix
        normal = (piece.text.decode(errors="replace") for piece in pieces if piece.kind == "normal")
        by_words = all(_ONE_WORD.fullmatch(text.replace(SPACE, " ")) for text in normal)
        self._parts = _BY_WORDS if by_words else _WHOLE
        self._sign = byte_fallback(pieces)(SPACE)
        self._ids = {SPACE: self._sign}

    def encode(self, text: str, start: bool = True) -> list[int]:
        check_text(text)
        if start and self._prefix and text:
            text = " " + text
        parts = self._parts.findall(text)
        new = list({part for part in parts if part not in self._ids})
        if len(self._ids) + len(new) > _MOST_REMEMBERED:
            self._ids = {SPACE: self._sign}
            new = list(set(parts) - {SPACE})
        if new:  # sentencepiece takes 0.1 ms even for nothing, four times as long as all the rest of a caption
            self._ids.update(zip(new, self._encode(new), strict=True))
        return list(chain.from_iterable(map(self._ids.__getitem__, parts)))


def byte_fallback(pieces: Sequence[Piece]) -> Callable[[str], list[int]]:
    """The ids of a text that has no piece: those of its bytes, or <unk> if there are not all 256 of them."""
    ids = {piece.text: id for id, piece in enumerate(pieces) if piece.kind == "byte"}
    by_byte = [ids.get(b"<0x%02X>" % byte) for byte in range(NUM_BYTES)]
    unknown = next((id for id, piece in enumerate(pieces) if piece.kind == "unknown"), 0)

    def fall_back(text: str) -> list[int]:
        found = [by_byte[byte] for byte in text.encode()]
        return [unknown] if None in found else [id for id in found if id is not None]

    return fall_back

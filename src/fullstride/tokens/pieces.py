"""Llama's pieces, put together in Python: for files that hold the pieces alone, as tokenizer.bin and GGUF do.

A part of a text is at first its characters. Of all neighbours whose union is a piece, those with the highest score are
united, the first of equals, until there are none; a character that is no piece becomes bytes. As sentencepiece does.
"""

import heapq
from pathlib import Path

from . import llama2c_file
from .decoding import Decoder, Decodes
from .tokenizer import SPACE, Piece
from .words import Words, byte_fallback


class Pieces(Decodes):
    def __init__(self, pieces: list[Piece], bos: int, eos: int) -> None:
        _check(pieces, bos, eos)
        self.size, self.bos, self.eos = len(pieces), bos, eos
        self._pieces = list(pieces)
        self._ids: dict[str, int] = {}
        for id, piece in enumerate(pieces):
            if piece.kind == "normal":  # the first of equal ones
                self._ids.setdefault(piece.text.decode(errors="surrogateescape"), id)
        self._fall_back = byte_fallback(pieces)
        self._words = Words(pieces, lambda parts: [self._unite(part) for part in parts], prefix=True)
        self._decoder = Decoder(pieces, bos)

    def encode(self, text: str, start: bool = True) -> list[int]:
        return self._words.encode(text, start)

    def pieces(self) -> list[Piece]:
        return list(self._pieces)

    def save(self, folder: Path) -> Path:
        return llama2c_file.write(folder / llama2c_file.FILE, self._pieces, self.bos, self.eos)

    def _unite(self, text: str) -> list[int]:
        symbols: list[str | None] = list(text.replace(" ", SPACE))  # None: united with the one before
        after = list(range(1, len(symbols) + 1))
        before = list(range(-1, len(symbols) - 1))
        found: list[tuple[float, int, int, str]] = []

        def look(left: int) -> None:
            right = after[left]
            if left >= 0 and right < len(symbols):
                union = f"{symbols[left]}{symbols[right]}"
                id = self._ids.get(union)
                if id is not None:
                    heapq.heappush(found, (-self._pieces[id].score, left, right, union))

        for left in range(len(symbols) - 1):
            look(left)
        while found:
            _, left, right, union = heapq.heappop(found)
            if symbols[left] is None or after[left] != right or f"{symbols[left]}{symbols[right]}" != union:
                continue  # one of them was united with another since
            symbols[left], symbols[right] = union, None
            after[left] = after[right]
            if after[left] < len(symbols):
                before[after[left]] = left
                look(left)
            if before[left] >= 0:
                look(before[left])
        return [id for symbol in symbols if symbol is not None for id in self._ids_of(symbol)]

    def _ids_of(self, symbol: str) -> list[int]:
        id = self._ids.get(symbol)
        return self._fall_back(symbol.replace(SPACE, " ")) if id is None else [id]


def _check(pieces: list[Piece], bos: int, eos: int) -> None:
    if not pieces:
        raise ValueError("pieces: expected some, got none")
    for name, id in (("bos", bos), ("eos", eos)):
        if not 0 <= id < len(pieces):
            raise ValueError(f"{name}: expected one of the {len(pieces)} pieces, got {id}")

"""From ids to text, for tokenizers of any kind."""

import codecs
from collections.abc import Callable, Iterable, Sequence

from .tokenizer import SPACE, Piece

_UNKNOWN = "\ufffd".encode()


class Decoder:
    def __init__(self, pieces: Sequence[Piece], bos: int, prefix: bool = True) -> None:
        """prefix: texts begin with a space that is not theirs."""
        self._texts = [_text(piece) for piece in pieces]
        self._bos, self._prefix = bos, prefix

    def decode(self, ids: Iterable[int]) -> str:
        feed = self._feed(self._prefix)
        return "".join([feed(id) for id in ids]) + feed(None)

    def stream(self) -> Callable[[int], str]:
        return self._feed(False)

    def _feed(self, at_start: bool) -> Callable[[int | None], str]:
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")

        def feed(id: int | None) -> str:
            nonlocal at_start
            if id is None:
                return utf8.decode(b"", final=True)
            if not 0 <= id < len(self._texts):
                raise ValueError(f"token {id}: expected one from 0 to {len(self._texts) - 1}, the tokenizer's last")
            if id == self._bos:
                at_start = self._prefix
                return ""
            text = self._texts[id]
            if at_start and text:
                text, at_start = text.removeprefix(b" "), False
            return utf8.decode(text)

        return feed


class Decodes:
    """What all tokenizers have in common."""

    _decoder: Decoder

    def decode(self, ids: Iterable[int]) -> str:
        return self._decoder.decode(ids)

    def stream(self) -> Callable[[int], str]:
        return self._decoder.stream()


def _text(piece: Piece) -> bytes:
    """What a piece stands for."""
    if piece.kind == "control":
        return b""
    if piece.kind == "unknown":
        return _UNKNOWN
    if piece.kind == "byte":
        return bytes([byte_of(piece)])
    return piece.text.replace(SPACE.encode(), b" ")


def byte_of(piece: Piece) -> int:
    """Of a piece such as <0x0A>."""
    return int(piece.text[3:5], 16)

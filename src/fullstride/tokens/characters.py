"""One token a character: the characters of a text, and bytes for all others.

    0 <unk>, 1 <s>, 2 </s>, 3 ... 258 the bytes, 259 ... the alphabet in the order of its code points

No tokens are ever united, so any program that reads Llama's pieces can use it.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import durable
from .decoding import Decoder, Decodes
from .tokenizer import NUM_BYTES, NUM_SPECIAL, SPACE, Piece, check_text, special_pieces

FILE = "characters.json"
_FIRST = NUM_SPECIAL + NUM_BYTES
_FORMAT = "fullstride characters 1"


class Characters(Decodes):
    bos, eos = 1, 2

    def __init__(self, alphabet: Iterable[str]) -> None:
        """A space always belongs to it; the sign that stands for one in pieces cannot, and is made of bytes."""
        self.alphabet = "".join(sorted((set(alphabet) | {" "}) - {SPACE}))
        check_text(self.alphabet)
        self.size = _FIRST + len(self.alphabet)
        if self.size > 2**16:
            raise ValueError(f"the text has {len(self.alphabet):,} characters, more than 65,277: use bpe")
        codes = np.frombuffer(self.alphabet.encode("utf-32-le"), np.uint32)
        self._ids = np.zeros(int(codes[-1]) + 2, np.uint16)  # by code point; the last entry is that of all beyond
        self._ids[codes] = np.arange(_FIRST, self.size, dtype=np.uint16)
        self._decoder = Decoder(self.pieces(), self.bos)

    def encode(self, text: str, start: bool = True) -> list[int]:
        ids: list[int] = self.encode_array(text, start).tolist()
        return ids

    def encode_array(self, text: str, start: bool = True) -> NDArray[np.uint16]:
        check_text(text)
        if start and text:
            text = " " + text
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = self._ids[np.minimum(codes, len(self._ids) - 1)]
        others = np.flatnonzero(ids == 0)
        if not others.size:
            return ids
        parts, done = [], 0
        for place in others.tolist():
            as_bytes = np.frombuffer(text[place].encode(), np.uint8).astype(np.uint16) + NUM_SPECIAL
            parts += [ids[done:place], as_bytes]
            done = place + 1
        return np.concatenate([*parts, ids[done:]])

    def pieces(self) -> list[Piece]:
        return special_pieces() + [Piece(c.replace(" ", SPACE).encode(), 0.0) for c in self.alphabet]

    def save(self, folder: Path) -> Path:
        content = {"format": _FORMAT, "alphabet": self.alphabet}
        return durable.replace(folder / FILE, (json.dumps(content) + "\n").encode())


def read(path: Path) -> Characters:
    what = f"{path}: expected an alphabet as `fullstride train llama` writes it into {FILE}"
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{what}, got what is no JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f'{what}, with "format": "{_FORMAT}"')
    alphabet = content.get("alphabet")
    if not isinstance(alphabet, str) or alphabet != "".join(sorted(set(alphabet))) or SPACE in alphabet:
        raise ValueError(f"{what}, with every character once, in the order of code points")
    tokenizer = Characters(alphabet)
    if tokenizer.alphabet != alphabet:  # ids would be others than those of the model that came with it
        raise ValueError(f"{what}, with a space in it")
    return tokenizer

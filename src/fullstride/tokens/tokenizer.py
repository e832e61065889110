"""What a tokenizer is: text to numbers and back, exactly.

Those made here follow Llama's: 0 is <unk>, 1 <s> (before a text), 2 </s> (after it), then the 256 bytes, of which a
character without a piece of its own is made; a text begins with a space that is not in it (the dummy prefix: a first
word has the piece it has elsewhere), which decode() takes away. llama2.c's run.c always does so; sentencepiece, Hugging
Face and llama.cpp do so for Llama. decode(encode(text)) == text for every text, U+2581 included, which stands for a
space in pieces.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

SPACE = "\u2581"  # what stands for a space in a piece
NUM_SPECIAL, NUM_BYTES = 3, 256

Kind = Literal["normal", "unknown", "control", "byte"]


@dataclass(frozen=True)
class Piece:
    """As sentencepiece and GGUF have it: "\u2581the", "<s>", "<0x0A>", in UTF-8."""

    text: bytes
    score: float  # of two neighbours, those whose union has the highest score are united first
    kind: Kind = "normal"


class Tokenizer(Protocol):
    @property
    def size(self) -> int: ...

    @property
    def bos(self) -> int: ...

    @property
    def eos(self) -> int: ...

    def encode(self, text: str, start: bool = True) -> list[int]:
        """Without bos. start: the text is the beginning of one, and gets the dummy prefix; else it goes on."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """A whole text: the space at the start, and after each bos, is taken away."""
        ...

    def stream(self) -> Callable[[int], str]:
        """Takes ids one by one and gives what text they complete: of some characters an id is only a part.

        It begins in the middle of a text; a space is taken away after bos only.
        """
        ...

    def pieces(self) -> list[Piece]:
        """By id."""
        ...

    def save(self, folder: Path) -> Path:
        """Writes its file, whole and lasting, in place of one that is there."""
        ...


def special_pieces() -> list[Piece]:
    """The first 259 of Llama's pieces."""
    special = [Piece(b"<unk>", 0.0, "unknown"), Piece(b"<s>", 0.0, "control"), Piece(b"</s>", 0.0, "control")]
    return special + [Piece(b"<0x%02X>" % byte, 0.0, "byte") for byte in range(NUM_BYTES)]


def check_text(text: str) -> None:
    """What cannot be written as UTF-8 cannot be said in bytes: halves of surrogate pairs, as JSON escapes may hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(
            f"character {error.start} of the text is U+{code:04X}, half of a surrogate pair: it is no text; remove it"
        ) from None

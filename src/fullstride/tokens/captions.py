"""Captions as a CLIP reads them: start, pieces, end, and more of `end` where a batch is longer.

    ids(text) = [bos, pieces(text)[: context - 2], end]

Of a tokenizer of ours with n ids, `end` is n, one more than it has: the end of a caption is where the model looks, and
nothing else may stand for it. White space becomes single spaces, none at either end. U+2581, which stands for a space
in pieces, counts as one, so that other programs give the same ids for every text. A tokenizer of Hugging Face's CLIP
has both signs, and rules of its own.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from . import bpe, characters, clip_files, llama2c_file
from .characters import Characters
from .clip_files import ClipTokenizer
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["characters", "bpe"]
SPACES = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\u2581]+"
"""A regular expression: what str.split() cuts at, and U+2581."""
_SPACES = re.compile(SPACES)
FILES = (characters.FILE, bpe.FILE, llama2c_file.FILE, *clip_files.FILES)
"""Of which some are in a folder that captions are loaded from."""


class Captions:
    def __init__(self, tokenizer: Tokenizer | ClipTokenizer) -> None:
        self.tokenizer = tokenizer
        self.bos = tokenizer.bos
        if isinstance(tokenizer, ClipTokenizer):
            self.end, self.vocabulary = tokenizer.end, tokenizer.size
        else:
            self.end, self.vocabulary = tokenizer.size, tokenizer.size + 1

    def encode(self, text: str, context: int) -> list[int]:
        """At most `context` ids, the last of which is `end`."""
        if context < 1:
            raise ValueError(f"context: expected 1 token or more, got {context}")
        if not isinstance(self.tokenizer, ClipTokenizer):
            text = single_spaced(text)
        ids = [self.bos, *self.tokenizer.encode(text)]
        return [*ids[: context - 1], self.end]

    def batch(self, texts: Sequence[str], context: int, multiple: int = 8) -> "Tensor":
        """int64 (N, T): T is the longest, rounded up to a multiple, but no more than `context`."""
        import torch

        rows = [self.encode(text, context) for text in texts]
        longest = max(map(len, rows), default=1)
        length = min(-(-longest // multiple) * multiple, context)
        padded = [row + [self.end] * (length - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int64).view(len(rows), length)

    def save(self, folder: Path) -> list[Path]:
        """The files from which load() makes it again, in place of those that are there."""
        written = self.tokenizer.save(folder)
        return written if isinstance(written, list) else [written]


def load(folder: Path) -> Captions | None:
    """That of a run or of a Hugging Face folder; None if it has none."""
    from . import find
    from . import load as load_own

    if find(folder) is not None:
        return Captions(load_own(folder))
    theirs = clip_files.read(folder)
    return None if theirs is None else Captions(theirs)


def load_from(folder: Path) -> Captions:
    """The same; a ValueError if it has none."""
    found = load(folder)
    if found is None:
        raise ValueError(f"{folder}: expected a tokenizer (tokenizer.model, characters.json, tokenizer.json), got none")
    return found


def train(texts: Iterable[str], kind: Kind, vocabulary: int) -> Captions:
    """vocabulary: pieces of bpe, fewer if the texts are not good for so many; characters are those of the texts."""
    clean = (single_spaced(text) for text in texts)
    if kind == "bpe":
        return Captions(bpe.train(clean, vocabulary, at_most=True))
    alphabet: set[str] = set()
    for text in clean:
        alphabet.update(text)
    return Captions(Characters(alphabet))


def single_spaced(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")

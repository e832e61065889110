"""Text, or files of tokens, as what a language model is trained on and scored by.

Text is turned into tokens once, and kept in a folder whose name is a digest of the text and all that matters besides.
Files of tokens are used where they are.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import tokens
from ..machine.memory import as_size
from ..tokens import Characters, Tokenizer, bpe
from . import sources, text_files, token_cache, token_files
from .text_files import Document
from .token_files import Span

logger = logging.getLogger(__name__)

KINDS = ("characters", "bpe")
_VERSION = 1  # of what is made from the same text and settings
_MOST_TO_TRAIN = 64 << 20  # bytes of text, evenly taken, for a tokenizer


@dataclass(frozen=True)
class Corpus:
    train: tuple[Span, ...]
    valid: tuple[Span, ...]
    tokenizer: Tokenizer | None  # files of tokens may come without one
    vocabulary: int
    fingerprint: str


def load_corpus(path: Path, tokenizer: str | Tokenizer, vocabulary: int, valid_share: float = 0.1) -> Corpus:
    """The text or the tokens in `path`, a folder or a file.

    tokenizer: characters, bpe (of `vocabulary` pieces, trained on the text), the path of one, or one. The last
    `valid_share` of every text is held out. Tokens need no tokenizer; without one, `vocabulary` is how many there are.
    """
    if not 0 < valid_share < 1:
        raise ValueError(f"valid_share: expected a number between 0 and 1, got {valid_share}")
    if not path.exists():
        hint = f": `{sources.command('shakespeare', path)}` gets it" if path.name == "shakespeare" else ""
        raise FileNotFoundError(f"no text in {path}, which is not there{hint}")
    found = token_files.find(path, valid_share)
    if isinstance(tokenizer, str) and tokenizer not in KINDS:
        tokenizer = tokens.load(Path(tokenizer))
    if found is not None:
        return _of_tokens(path, *found, tokenizer, vocabulary)
    return _of_text(path, tokenizer, vocabulary, valid_share)


def _of_tokens(
    path: Path, train: tuple[Span, ...], valid: tuple[Span, ...], tokenizer: str | Tokenizer, vocabulary: int
) -> Corpus:
    loaded = None if isinstance(tokenizer, str) else tokenizer
    beside = tokens.find(path if path.is_dir() else path.parent)
    if loaded is None and beside is not None:
        loaded = tokens.load(beside)
    vocabulary = loaded.size if loaded is not None else vocabulary
    if not 1 <= vocabulary <= token_files.MOST_TOKENS:
        raise ValueError(f"vocabulary: expected 1 to {token_files.MOST_TOKENS} tokens, got {vocabulary} for {path}")
    token_files.check((*train, *valid), vocabulary)
    return Corpus(train, valid, loaded, vocabulary, token_files.fingerprint((*train, *valid)))


def _of_text(path: Path, tokenizer: str | Tokenizer, vocabulary: int, valid_share: float) -> Corpus:
    documents = text_files.find(path, valid_share)
    if not any(document.cut for document in documents) or all(document.cut == document.size for document in documents):
        raise ValueError(f"{path}: the text is too short to hold {valid_share:g} of it out: give more text")
    if not isinstance(tokenizer, str) and tokenizer.size > token_files.MOST_TOKENS:
        raise ValueError(f"expected a tokenizer of at most {token_files.MOST_TOKENS} tokens, got {tokenizer.size}")
    settings: dict[str, Any] = {"version": _VERSION, "valid_share": valid_share}
    if isinstance(tokenizer, str):
        settings["tokenizer"] = [tokenizer, vocabulary if tokenizer == "bpe" else None]
    else:
        settings["tokenizer"] = [[piece.text.hex(), piece.score, piece.kind] for piece in tokenizer.pieces()]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for document in documents:
        digest.update(token_cache.sha256_of(document.path))
    name = digest.hexdigest()

    def make(folder: Path) -> None:
        _make(folder, documents, _train(tokenizer, vocabulary, documents) if isinstance(tokenizer, str) else tokenizer)

    folder = token_cache.get(sources.default_folder("tokens") / name[:32], make)
    used = tokens.load(folder)
    train, valid = ((token_files.whole(folder / f"{split}.bin"),) for split in ("train", "valid"))
    return Corpus(train, valid, used, used.size, name)


def _train(kind: str, vocabulary: int, documents: list[Document]) -> Tokenizer:
    if kind == "characters":
        alphabet: set[str] = set()
        for held_out in (False, True):
            for part in _parts(documents, held_out):
                alphabet.update(part)
        return Characters(alphabet)
    size = sum(document.cut for document in documents)
    logger.info("training %s pieces on %s of text", f"{vocabulary:,}", as_size(min(size, _MOST_TO_TRAIN)))
    return bpe.train(_some(_parts(documents, False), _MOST_TO_TRAIN / max(size, 1)), vocabulary)


def _parts(documents: list[Document], held_out: bool) -> Iterator[str]:
    return (part for document in documents for part in document.parts(held_out))


def _some(parts: Iterator[str], share: float) -> Iterator[str]:
    """A share of the parts, evenly: sentencepiece keeps all that it trains on in memory, several times over."""
    seen = taken = 0
    for part in parts:
        seen += len(part)
        if taken < seen * share:
            taken += len(part)
            yield part


def _make(folder: Path, documents: list[Document], tokenizer: Tokenizer) -> None:
    tokenizer.save(folder)
    for name, held_out in (("train.bin", False), ("valid.bin", True)):
        token_cache.write(folder / name, (_encode(tokenizer, documents, held_out)))


def _encode(tokenizer: Tokenizer, documents: list[Document], held_out: bool) -> Iterator[bytes]:
    """bos before every text."""
    for document in documents:
        start = True
        for part in document.parts(held_out):
            if start:
                yield np.array([tokenizer.bos], token_files.DTYPE).tobytes()
            yield _array(tokenizer, part, start).astype(token_files.DTYPE, copy=False).tobytes()
            start = False


def _array(tokenizer: Tokenizer, text: str, start: bool) -> NDArray[np.uint16]:
    if isinstance(tokenizer, Characters):  # 5 times as fast as by a list
        return tokenizer.encode_array(text, start)
    return np.array(tokenizer.encode(text, start), np.uint16)

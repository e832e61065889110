"""Sentences of texts, to be spoken: those of .txt files, in an order that is a function of the seed.

    block      lines between blank ones, without [stage directions], titles and who speaks
    sentence   of a block, up to . ? or !, one that is too long in parts up to ; or :
    kept       of 3 to 25 words that are letters, digits and common punctuation, once each, none of them held out
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ....speech.characters import to_ascii
from ... import sources, text_files
from ..._random import bits
from .everyday import HELD_OUT
from .sentences import key

SHORTEST, LONGEST = 3, 25  # words

_STREAM = 0x7E47  # of the seed; other uses have others
_LONGEST_BLOCK = 1 << 16  # characters; a text without blank lines is cut there, and loses a sentence at each cut
_ABBREVIATIONS = frozenset({
    "mr", "mrs", "ms", "dr", "st", "prof", "rev", "gen", "col", "capt", "sen", "vs", "etc", "no", "jr", "sr", "co",
    "e.g", "i.e",
})  # fmt: skip
_DIRECTIONS = re.compile(r"(?:Enter|Re-enter|Exit|Exeunt)\b|(?:Act|Scene|Chapter|Book|Part) [IVXLC\d]+\b")
_SPEAKER = re.compile(r"[A-Z][\w']*(?: [\w']+){0,3}\.")
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"')]*(?:\s+|\s*--\s*)(?=[\"'(]*[A-Z0-9])")
_PLAIN = re.compile(r"[A-Za-z0-9 ,;:.?!'-]+")


def from_text(paths: Sequence[Path], seed: int) -> list[str]:
    """The sentences of files and folders; a path that is just `shakespeare` is the folder of `data shakespeare`."""
    seen = {key(text) for text in HELD_OUT}
    kept: list[str] = []
    for path in paths:
        before = len(kept)
        for text in _sentences(_found(path)):
            if key(text) not in seen:
                seen.add(key(text))
                kept.append(text)
        if len(kept) == before:
            raise ValueError(
                f"{path}: expected sentences of {SHORTEST} to {LONGEST} words that end with . ? or !, got none that "
                "are new; take it out, or give a longer text"
            )
    order = np.argsort(bits(seed, _STREAM, np.arange(len(kept), dtype=np.int64)), kind="stable")
    return [kept[i] for i in order]


def _found(path: Path) -> Path:
    if path.exists():
        return path
    if path == Path("shakespeare"):
        path = sources.default_folder("shakespeare")
        if path.exists():
            return path
        raise ValueError(f"{path} is not there: get it by `{sources.command('shakespeare', path)}`")
    raise ValueError(f"{path}: expected a text file or a folder of them, but there is none; check the name")


def _sentences(path: Path) -> Iterator[str]:
    for document in text_files.find(path, valid_share=0.0):
        for block in _blocks(document.parts(held_out=False)):
            yield from _of_block(block)


def _blocks(parts: Iterable[str]) -> Iterator[str]:
    rest = ""
    for part in parts:
        *whole, rest = re.split(r"\n\s*\n", (rest + part).replace("\r\n", "\n"))
        yield from whole
        if len(rest) > _LONGEST_BLOCK:
            yield rest
            rest = ""
    yield rest


def _of_block(block: str) -> Iterator[str]:
    lines = re.sub(r"\[[^\]]*\]?", " ", block).strip().split("\n")
    if len(lines) > 1 and _SPEAKER.fullmatch(lines[0].strip()):
        del lines[0]
    lines = [line for line in lines if not line.isupper() and not _DIRECTIONS.match(line.strip())]
    text = " ".join(" ".join(lines).split())
    # A sentence is not what it was without an unknown symbol: "#" marks it, which _PLAIN has not.
    text = text.translate({ord(symbol): "#" for symbol in to_ascii(text)[1]})
    for sentence in _split(to_ascii(text)[0]):
        yield from _fitting(sentence)


def _split(text: str) -> Iterator[str]:
    begin = 0
    for end in _SENTENCE_END.finditer(text):
        sentence = text[begin : end.start()]
        last = sentence.split()[-1].rstrip(".").lower() if sentence.split() else ""
        if sentence.endswith(".") and (last in _ABBREVIATIONS or re.search(r"(?:^|[ .])[A-HJ-Z]\.$", sentence)):
            continue  # "Mr. Smith", "J. Smith"
        yield sentence
        begin = end.end()
    yield text[begin:]


def _fitting(sentence: str) -> Iterator[str]:
    sentence = " ".join(re.sub(r"[\s,;:]*(?:--+| - )[\s,;:]*", ", ", sentence.replace('"', "")).split())
    parts = [sentence]
    if len(sentence.split()) > LONGEST:
        parts = [f"{part.rstrip(';: ,.')}." for part in re.split(r"[;:] ", sentence[:-1])]
        parts[-1] = parts[-1][:-1] + sentence[-1]
    for part in parts:
        part = part.strip(" ,;:-")
        if part[-1:] in (".", "?", "!") and SHORTEST <= len(part.split()) <= LONGEST and _PLAIN.fullmatch(part):
            yield part[0].upper() + part[1:]

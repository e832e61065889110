"""All pictures decoded once, to know which can be used, and remembered: what is good, its digest and, if they are not
too many, the pixels of all in one file that is memory-mapped. A file that could not be read is tried again."""

import contextlib
import hashlib
import json
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...machine import cpu
from .. import sources, token_cache
from . import reading
from .found import UNREAD, Pair, Skipped, said_by

MOST_BYTES = 2 << 30  # of pixels that are kept
_VERSION = 1  # of what is kept and of how pictures are decoded
_AT_A_TIME = 256  # pictures, in memory until they are written
_MOST_THREADS = 8  # a PNG of 64 million pixels takes 0.74 GB while it is decoded
_PIXELS, _VERDICTS = "pictures.bin", "verdicts.json"


@dataclass(frozen=True)
class Decoded:
    """The pairs whose pictures can be used."""

    pairs: list[Pair]
    digests: list[str]  # of the bytes of their pictures
    pixels: NDArray[np.uint8] | None  # (N, size, size, 3); None: too many to keep


class Verdict(NamedTuple):
    """What is kept of each picture: "" where nothing is to be said."""

    digest: str
    reason: str
    what: str


Outcome = tuple[Verdict, NDArray[np.uint8] | None]  # the pixels of a picture that can be used


def check(pairs: Sequence[Pair], size: int, skipped: Skipped) -> Decoded:
    """What cannot be decoded is left out, and named."""
    version = reading.version()  # or says that it is missing
    keeps = len(pairs) * size * size * 3 <= MOST_BYTES
    key = _key(pairs, version, size, keeps)
    folder = _made(key, _outcomes(pairs, size), keeps)
    verdicts = _verdicts(folder)
    again = [i for i, verdict in enumerate(verdicts) if verdict.reason == UNREAD and _can_be_read(pairs[i])]
    if again:
        with contextlib.suppress(_StillUnread):  # then nothing is written, and the next load tries once more
            others = hashlib.sha256(json.dumps([key, again]).encode()).hexdigest()[:32]
            folder = _made(others, _outcomes_again(folder, pairs, again, size, keeps), keeps)
            verdicts = _verdicts(folder)
    good = [(pair, verdict.digest) for pair, verdict in zip(pairs, verdicts, strict=True) if not verdict.reason]
    for pair, verdict in zip(pairs, verdicts, strict=True):
        if verdict.reason:
            skipped.add(verdict.reason, f"{pair.name}: {verdict.what}")
    pixels = _pixels(folder, len(good), size) if keeps and good else None
    return Decoded([pair for pair, _ in good], [digest for _, digest in good], pixels)


def num_threads(machine: cpu.Cpu) -> int:
    """That decode at once: Pillow frees Python's lock."""
    return min(machine.num_usable_cores, _MOST_THREADS)


def _key(pairs: Sequence[Pair], version: str, size: int, keeps: bool) -> str:
    digest = hashlib.sha256(json.dumps([_VERSION, version, size, keeps]).encode())
    for pair in pairs:
        place = pair.place
        path = os.fsencode(os.path.abspath(place.path))
        digest.update(b"%s\0%d %d %d\n" % (path, place.offset, place.size, place.changed))
    return digest.hexdigest()[:32]


def _made(key: str, outcomes: Iterator[Outcome], keeps: bool) -> Path:
    def make(folder: Path) -> None:
        verdicts: list[Verdict] = []

        def pixels() -> Iterator[bytes]:
            for verdict, picture in outcomes:
                verdicts.append(verdict)
                if keeps and picture is not None:
                    yield picture.tobytes()

        token_cache.write(folder / _PIXELS, pixels())
        token_cache.write(folder / _VERDICTS, [json.dumps(verdicts).encode()])

    return token_cache.get(sources.default_folder("pictures") / key, make)


def _verdicts(folder: Path) -> list[Verdict]:
    return [Verdict(*verdict) for verdict in json.loads((folder / _VERDICTS).read_bytes())]


def _pixels(folder: Path, num: int, size: int) -> NDArray[np.uint8]:
    return np.memmap(folder / _PIXELS, np.uint8, "r", shape=(num, size, size, 3))


def _outcomes(pairs: Sequence[Pair], size: int) -> Generator[Outcome, None, None]:
    with reading.quiet(), ThreadPoolExecutor(num_threads(cpu.describe())) as threads:
        for start in range(0, len(pairs), _AT_A_TIME):
            yield from threads.map(lambda pair: _outcome(pair, size), pairs[start : start + _AT_A_TIME])


class _StillUnread(Exception):
    pass


def _outcomes_again(
    before: Path, pairs: Sequence[Pair], again: Sequence[int], size: int, keeps: bool
) -> Iterator[Outcome]:
    """What is in the folder `before`, but for the pictures `again`, which are decoded."""
    verdicts = _verdicts(before)
    num_good = sum(not verdict.reason for verdict in verdicts)
    rows = iter(_pixels(before, num_good, size) if keeps and num_good else ())
    missing = set(again)
    with contextlib.closing(_outcomes([pairs[i] for i in again], size)) as decoded:
        for i, verdict in enumerate(verdicts):
            if i not in missing:
                yield verdict, None if verdict.reason or not keeps else next(rows)
                continue
            outcome = next(decoded)
            if outcome[0].reason == UNREAD:
                raise _StillUnread
            yield outcome


def _can_be_read(pair: Pair) -> bool:
    try:
        pair.place.read()
    except (OSError, ValueError):
        return False
    return True


def _outcome(pair: Pair, size: int) -> Outcome:
    try:
        content = pair.place.read()
    except (OSError, ValueError) as error:
        return Verdict("", UNREAD, said_by(error)), None
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    try:
        return Verdict(digest, "", ""), reading.decode(content, size)
    except reading.Unusable as error:
        return Verdict(digest, error.reason, str(error)), None

"""All pictures decoded once, to know which can be used, and remembered: what is good, its digest and, if they are not
too many, the pixels of all in one file that is memory-mapped."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import sources, token_cache
from . import reading
from .found import Pair, Skipped

MOST_BYTES = 2 << 30  # of pixels that are kept
_VERSION = 1  # of what is kept and of how pictures are decoded
_AT_A_TIME = 256  # pictures, in memory until they are written
_PIXELS, _VERDICTS = "pictures.bin", "verdicts.json"


@dataclass(frozen=True)
class Decoded:
    """The pairs whose pictures can be used."""

    pairs: list[Pair]
    digests: list[str]  # of the bytes of their pictures
    pixels: NDArray[np.uint8] | None  # (N, size, size, 3); None: too many to keep


def check(pairs: Sequence[Pair], size: int, skipped: Skipped) -> Decoded:
    """What cannot be decoded is left out, and named."""
    reading.image_module()  # or says that it is missing
    keeps = len(pairs) * size * size * 3 <= MOST_BYTES

    def make(folder: Path) -> None:
        _make(folder, pairs, size, keeps)

    folder = token_cache.get(sources.default_folder("pictures") / _key(pairs, size, keeps), make)
    verdicts = json.loads((folder / _VERDICTS).read_bytes())
    good = [(pair, digest) for pair, (digest, reason, _) in zip(pairs, verdicts, strict=True) if not reason]
    for pair, (_, reason, what) in zip(pairs, verdicts, strict=True):
        if reason:
            skipped.add(reason, f"{pair.name}: {what}")
    pixels = None
    if keeps and good:
        pixels = np.memmap(folder / _PIXELS, np.uint8, "r", shape=(len(good), size, size, 3))
    return Decoded([pair for pair, _ in good], [digest for _, digest in good], pixels)


def _key(pairs: Sequence[Pair], size: int, keeps: bool) -> str:
    digest = hashlib.sha256(json.dumps([_VERSION, size, keeps]).encode())
    for pair in pairs:
        place = pair.place
        path = os.fsencode(os.path.abspath(place.path))
        digest.update(b"%s\0%d %d %d\n" % (path, place.offset, place.size, place.changed))
    return digest.hexdigest()[:32]


def _make(folder: Path, pairs: Sequence[Pair], size: int, keeps: bool) -> None:
    verdicts: list[tuple[str, str, str]] = []  # digest, reason and what is wrong, "" where nothing is

    def pixels() -> Iterator[Any]:
        with reading.quiet(), ThreadPoolExecutor(os.cpu_count()) as threads:  # Pillow frees Python's lock
            for start in range(0, len(pairs), _AT_A_TIME):
                part = pairs[start : start + _AT_A_TIME]
                for verdict, picture in threads.map(lambda pair: _verdict(pair, size), part):
                    verdicts.append(verdict)
                    if keeps and picture is not None:
                        yield picture.tobytes()

    token_cache.write(folder / _PIXELS, pixels())
    token_cache.write(folder / _VERDICTS, [json.dumps(verdicts).encode()])


def _verdict(pair: Pair, size: int) -> tuple[tuple[str, str, str], NDArray[np.uint8] | None]:
    try:
        content = pair.place.read()
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return ("", "picture cannot be read", said), None
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    try:
        return (digest, "", ""), reading.decode(content, size)
    except reading.Unusable as error:
        return (digest, error.reason, str(error)), None

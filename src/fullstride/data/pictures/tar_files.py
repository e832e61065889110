"""Tar files in the form of webdataset: KEY.jpg (or another picture) with KEY.txt, or KEY.json with caption or text.

KEY goes up to the first dot of the name: one with more dots cannot be used. A tar file that was cut short is used as
far as it is whole.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .found import PICTURES, Pair, Place, Skipped, captions_in, label_in, said_by, split_in, tar_split
from .tables import CAPTION, LABEL, first_of

_BLOCK = 512  # bytes
_LONGEST = 1 << 20  # bytes of a text
_CUT = "tar file is cut short or damaged"
_BROKEN = "tar file cannot be read"
_KNOWN = (*PICTURES, ".txt", ".json")


@dataclass
class _Sample:
    picture: Place | None = None
    texts: dict[str, Place] = field(default_factory=dict)  # .txt and .json


def pairs(path: Path, name: str, skipped: Skipped, label: tuple[str, ...] = LABEL) -> list[Pair]:
    """`name`: the tar file's, in names and errors. label: the keys in the JSON that tell the class."""
    samples: dict[str, _Sample] = {}
    for member, place in _members(path, name, skipped):
        folder, _, file = member.rpartition("/")
        stem, _, suffix = file.partition(".")
        if not stem or not f".{suffix.lower()}".endswith(_KNOWN):
            continue
        if "." in suffix:
            skipped.add("name has more than one dot", f"{name}: {member}")
            continue
        sample = samples.setdefault(f"{folder}/{stem}" if folder else stem, _Sample())
        if not _put(sample, suffix.lower(), place):
            skipped.add("name occurs twice", f"{name}: {member}")
    found = (_pair(name, key, sample, skipped, label) for key, sample in samples.items())
    return [pair for pair in found if pair is not None]


def _put(sample: _Sample, suffix: str, place: Place) -> bool:
    """False if something of the kind is there."""
    if f".{suffix}" in PICTURES:
        is_new, sample.picture = sample.picture is None, sample.picture or place
        return is_new
    return sample.texts.setdefault(suffix, place) is place


def _pair(tar: str, key: str, sample: _Sample, skipped: Skipped, label: tuple[str, ...]) -> Pair | None:
    name = f"{tar}/{key}"
    if sample.picture is None:
        skipped.add("caption without a picture", name)
        return None
    if not sample.texts:
        skipped.add("picture without a caption", name)
        return None
    values: dict[str, Any] = {}
    try:
        if "json" in sample.texts:
            values = _json(sample.texts["json"])
        caption = first_of(values, CAPTION)
        if caption is None and "txt" in sample.texts:
            caption = _text(sample.texts["txt"])
        split = split_in(values.get("split"), name, skipped)
    except UnicodeDecodeError:
        skipped.add("caption is not UTF-8", name)
        return None
    except (_Unreadable, OSError) as error:
        skipped.add("caption cannot be read", f"{name}: {said_by(error)}")
        return None
    except ValueError:  # a split that nobody knows: counted
        return None
    captions = captions_in(caption, name, skipped)
    split = split or tar_split(tar)
    return Pair(name, sample.picture, tuple(captions), split, label_in(first_of(values, label))) if captions else None


class _Unreadable(Exception):
    pass


def _text(place: Place) -> str:
    if place.size > _LONGEST:
        raise _Unreadable(f"expected at most {_LONGEST:,} bytes, got {place.size:,}")
    return place.read().decode("utf-8-sig")


def _json(place: Place) -> dict[str, Any]:
    text = _text(place)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise _Unreadable(f"expected a JSON object, got {text[:40]!r}")
    return {key.lower(): value for key, value in values.items()}


def _members(path: Path, name: str, skipped: Skipped) -> Iterator[tuple[str, Place]]:
    """The files that are whole."""
    try:
        whole = Place.whole(path)
        archive = tarfile.open(path, "r:")  # noqa: SIM115, closed below
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        skipped.add(_BROKEN, f"{name}: {said_by(error)}")
        return
    with archive:
        while True:
            try:
                member = archive.next()
            except (tarfile.TarError, OSError, EOFError, ValueError):
                member = None
            if member is None:
                break
            if member.isreg() and not member.issparse():
                if member.offset_data + member.size > whole.size:
                    skipped.add(_CUT, f"{name}: {member.name} ends at byte {whole.size:,}")
                    return
                yield member.name.removeprefix("./"), Place(path, member.offset_data, member.size, whole.changed)
        at = archive.offset  # tarfile stops without a word at what is no header
    try:
        is_end = Place(path, at, min(_BLOCK, max(whole.size - at, 0)), 0).read() == bytes(_BLOCK)
    except OSError as error:
        skipped.add(_BROKEN, f"{name}: {said_by(error)}")
        return
    if not is_end:
        skipped.add(_CUT, f"{name}: expected a file or the end mark at byte {at:,} of {whole.size:,}")


def is_tar(path: Path) -> bool:
    return path.suffix.lower() == ".tar"

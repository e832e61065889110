"""What is found in folders and tar files: pictures by their places, captions, and what cannot be used and why."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
_TRAIN = ("train", "training")
_VALID = ("valid", "val", "validation", "test", "dev")
_SHOWN = 3  # lines of a reason

UNREAD = "file cannot be read"


@dataclass(frozen=True)
class Place:
    """Bytes of a file: all of them, or a member of a tar file."""

    path: Path
    offset: int
    size: int  # bytes
    changed: int  # when the file was, in nanoseconds

    @classmethod
    def whole(cls, path: Path) -> "Place":
        status = path.stat()
        return cls(path, 0, status.st_size, status.st_mtime_ns)

    def read(self) -> bytes:
        """Opens the file anew: processes that were forked share nothing."""
        file = os.open(self.path, os.O_RDONLY)
        try:
            parts, at, stop = [], self.offset, self.offset + self.size
            while at < stop:  # one call gives at most 2 GB
                part = os.pread(file, stop - at, at)
                if not part:
                    raise ValueError(f"{self.path}: ends at byte {at}, expected {stop}: it was changed while in use")
                parts.append(part)
                at += len(part)
            return b"".join(parts)
        finally:
            os.close(file)


@dataclass(frozen=True)
class Pair:
    name: str  # no other has it: the path in the folder, or that of the tar file and the key in it
    place: Place
    captions: tuple[str, ...]  # all of them right
    split: str | None = None  # train or valid, where that is said
    label: str | None = None


@dataclass
class Skipped:
    """What was not used: all of it is counted, the first of each reason are kept."""

    counts: dict[str, int] = field(default_factory=dict)  # by reason
    first: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, what: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        shown = self.first.setdefault(reason, [])
        if len(shown) < _SHOWN:
            shown.append(printable(what))

    def __len__(self) -> int:
        return sum(self.counts.values())

    def lines(self) -> list[str]:
        """One for each reason."""
        found = []
        for reason, count in self.counts.items():
            shown = self.first[reason]
            more = f"; and {count - len(shown):,} more" if count > len(shown) else ""
            found.append(f"skipped {count:,}, {reason}: {'; '.join(shown)}{more}")
        return found


def printable(text: str) -> str:
    """In one line, whatever bytes a name consists of."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def captions_in(value: object, where: str, skipped: Skipped) -> list[str]:
    """Of a text or a list of texts: each in one line, once, in their order."""
    found: dict[str, None] = {}
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str) or not text.strip():
            skipped.add("empty caption", where if isinstance(text, str | None) else f"{where}: {str(text)[:40]!r}")
        elif not _is_unicode(text):
            skipped.add("caption is not UTF-8", where)
        else:
            found[" ".join(text.split())] = None
    return list(found)


def split_in(value: object, where: str, skipped: Skipped) -> str | None:
    """train or valid; None where nothing is said. ValueError, after it was counted, for other words."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word is None or word == "":
        return None
    if word in _TRAIN or word in _VALID:
        return "train" if word in _TRAIN else "valid"
    skipped.add(f"split is none of {', '.join(_TRAIN[:1] + _VALID)}", f"{where}: {str(value)[:40]!r}")
    raise ValueError(word)


def folder_split(name: str) -> str | None:
    """By the first folder of a path."""
    folder, separator, _ = name.partition("/")
    return _split(folder) if separator else None


def tar_split(name: str) -> str | None:
    """By the first folder of a tar file's path, else by how its own name starts: train-000.tar, val_001.tar."""
    return folder_split(name) or _split(re.split("[-_.]", name.rpartition("/")[2])[0])


def _split(word: str) -> str | None:
    return "train" if word.lower() in _TRAIN else "valid" if word.lower() in _VALID else None


def said_by(error: Exception) -> str:
    """Without the path: names in the folder are shorter."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def label_in(value: object) -> str | None:
    text = "" if value is None or isinstance(value, list | dict) else " ".join(str(value).split())
    return text if text and _is_unicode(text) else None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that were kept as they are, or half of a character in JSON
        return False
    return True

"""One checkpoint: the files of its directory, written to the disk, checked, and read.

    model.safetensors, optimizer.safetensors, ...    the tensors of a snapshot, one file a part
    state.json, ...                                  its documents
    manifest.json                                    format, kind, step; size and sha256 of each file, and its own

The manifest is written last. Whatever changes in a file afterwards, one bit or its end, is told by it. Nothing in a
checkpoint is ever executed.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ... import durable
from ...durable import Poll, no_poll
from . import tensor_files

FORMAT = 1
MANIFEST = "manifest.json"
_FILE = re.compile(r"[A-Za-z0-9_-]+\.(safetensors|json)")
_BROKEN = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after `step` steps."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # part (the stem of its file) -> name -> tensor
    documents: dict[str, Any]  # part -> what JSON can say; flat_state.flatten() makes it of anything else


class InvalidCheckpoint(ValueError):
    """What is there is not what was written."""


class Content(Protocol):
    """Of a file to be written."""

    size: int

    def pieces(self) -> Iterable[bytes | memoryview]: ...


# ---- writing ---------------------------------------------------------------------------------------------------------


def contents(snapshot: Snapshot) -> dict[str, Content]:
    """The files of a snapshot by name, without its manifest. ValueError or TypeError for what cannot be saved."""
    files: dict[str, Content] = {}
    for part, tensors in snapshot.tensors.items():
        files[f"{part}.safetensors"] = tensor_files.Layout(tensors)
    for part, document in snapshot.documents.items():
        _check_document(document, part)
        files[f"{part}.json"] = _Document(json.dumps(document, indent=1).encode())
    for name in files:
        if not _FILE.fullmatch(name) or name == MANIFEST:
            raise ValueError(f"expected letters, digits, - and _ in the name of a part, and not manifest, got {name!r}")
    return files


def write(path: Path, files: dict[str, Content], kind: str, step: int, poll: Poll = no_poll) -> None:
    """Makes the directory and returns when the disk has all of it."""
    path.mkdir()
    sums = {name: durable.write(path / name, content.pieces(), poll) for name, content in files.items()}
    manifest = {"format": FORMAT, "kind": kind, "step": step, "files": {name: s._asdict() for name, s in sums.items()}}
    durable.write(path / MANIFEST, [_seal(manifest)])
    durable.sync(path)


class _Document:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def pieces(self) -> Iterable[bytes | memoryview]:
        return [self._data]


def _check_document(value: Any, place: str) -> None:
    """JSON would turn keys into strings and tuples into lists without a word, and the run would resume from those."""
    if isinstance(value, dict) and all(type(key) is str for key in value):
        for key, item in value.items():
            _check_document(item, f"{place}.{key}")
    elif type(value) is list:
        for i, item in enumerate(value):
            _check_document(item, f"{place}.{i}")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"expected JSON in documents, got {type(value).__name__} at {place}; flat_state.flatten() it")


def _seal(manifest: dict[str, Any]) -> bytes:
    """With a checksum of its own."""
    text = json.dumps(manifest, indent=1).encode()
    return json.dumps({**manifest, "sha256": hashlib.sha256(text).hexdigest()}, indent=1).encode() + b"\n"


# ---- reading ---------------------------------------------------------------------------------------------------------


def load(path: Path) -> Snapshot:
    """All of it, in memory, each file read and checked in one go. InvalidCheckpoint says what is wrong with which."""
    step, files = _manifest(path)
    tensors: dict[str, dict[str, Tensor]] = {}
    documents: dict[str, Any] = {}
    for name, expected in files.items():
        stem, _, kind = name.rpartition(".")
        try:
            with durable.Reader(path / name) as reader:
                _check(name, "bytes", reader.left, expected.bytes)
                if kind == "safetensors":
                    tensors[stem] = tensor_files.read(reader)
                else:
                    documents[stem] = json.loads(reader.read(reader.left))
                found = reader.finish()
        except InvalidCheckpoint:
            raise
        except _BROKEN as error:
            raise InvalidCheckpoint(f"{name} cannot be read: {reason(error)}") from error
        _check(name, "sha256", found.sha256, expected.sha256)
    return Snapshot(step, tensors, documents)


def verify(path: Path, checksums: bool = True, poll: Poll = no_poll) -> None:
    """InvalidCheckpoint unless all files have the sizes and the checksums of the manifest, by what the disk gives."""
    for name, expected in _manifest(path)[1].items():
        try:
            _check(name, "bytes", (path / name).stat().st_size, expected.bytes)
            if checksums:
                _check(name, "sha256", durable.measure(path / name, poll).sha256, expected.sha256)
        except OSError as error:
            raise InvalidCheckpoint(f"{name} cannot be read: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """What went wrong, in one line without numbers and paths."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _manifest(path: Path) -> tuple[int, dict[str, durable.Sum]]:
    """(step, the sum of each file)"""
    try:
        data = (path / MANIFEST).read_bytes()
        manifest = json.loads(data)
        del manifest["sha256"]
        if _seal(manifest) != data:
            raise ValueError("it does not have its checksum")
        if manifest["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT}, got {manifest['format']}; use the version that wrote it")
        files = {name: durable.Sum(**entry) for name, entry in manifest["files"].items()}
        for name in files:
            if not _FILE.fullmatch(name):  # a path out of this directory, say
                raise ValueError(f"it names a file {name!r}, which no checkpoint has")
        return int(manifest["step"]), files
    except _BROKEN as error:
        raise InvalidCheckpoint(f"{MANIFEST} cannot be used: {reason(error)}") from error


def _check(name: str, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise InvalidCheckpoint(f"{name} is damaged: expected {what} {expected}, got {found}")

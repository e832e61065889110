"""Utterances of a corpus in files of some dozens: .safetensors, whole or not at all, read without being loaded.

    mel (sum of T, 80) fp16     frames (N,)     phonemes, durations, pitch, energy (sum of P,)     counts (N,) phonemes
    speakers (N,)               sound (sum of samples,) int16 and sounds (N,), where sounds are kept

All utterances one after the other. Phonemes and speakers are numbers of lists in the metadata, which also has names,
texts, words as they were pronounced, what was skipped and why, and a checksum of all. fp16 keeps 11 bits of a log mel:
it is off by 0.004 at most, some 1/50 of what models err by.

The package `safetensors` reads these files. They are not written by it, because it puts the metadata in an order of
chance, and the same corpus should be the same bits.
"""

import hashlib
import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import durable
from .utterance import Utterance

VERSION = 1  # of what is made from the same settings
_DTYPES = {"F16": np.float16, "F32": np.float32, "I16": np.int16, "I32": np.int32}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_NOT_LISTS = ("version", "sha256")
_LARGEST_HEADER = 64 << 20


def write(
    path: Path, utterances: Sequence[Utterance], skipped: Sequence[str], notes: Sequence[str] = (), sources: str = ""
) -> None:
    """skipped: a line each; notes: what was done to a recording before; sources: what files it was made from."""
    symbols = sorted({symbol for u in utterances for symbol in u.phonemes})
    speakers = sorted({u.speaker for u in utterances})
    number = {symbol: i for i, symbol in enumerate(symbols)}
    empty = np.empty((0, 80), np.float16)
    tensors: dict[str, NDArray[Any]] = {
        "mel": np.concatenate([u.mel for u in utterances] or [empty]),
        "frames": np.array([u.num_frames for u in utterances], np.int32),
        "phonemes": np.array([number[symbol] for u in utterances for symbol in u.phonemes], np.int16),
        "durations": _joined([u.durations for u in utterances], np.int32),
        "pitch": _joined([u.pitch for u in utterances], np.float32),
        "energy": _joined([u.energy for u in utterances], np.float32),
        "counts": np.array([len(u.phonemes) for u in utterances], np.int32),
        "speakers": np.array([speakers.index(u.speaker) for u in utterances], np.int32),
        "sound": _joined([u.sound for u in utterances], np.int16),
        "sounds": np.array([len(u.sound) for u in utterances], np.int32),
    }
    lists = {
        "symbols": symbols, "speaker_names": speakers, "names": [u.name for u in utterances],
        "texts": [u.text for u in utterances], "skipped": list(skipped), "notes": list(notes), "sources": sources,
        "pronunciations": [[word, *said] for u in utterances for word, said in u.words],
    }  # fmt: skip
    metadata = {name: json.dumps(values) for name, values in lists.items()} | {"version": str(VERSION)}
    durable.replace(path, _packed(tensors, metadata))


def _packed(tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    place = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):  # so that each is aligned
        tensor = tensors[name]
        parts.append(tensor.tobytes())
        end = place + tensor.nbytes
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    data = b"".join(parts)
    metadata = metadata | {"sha256": _digest(metadata, header, data)}
    head = json.dumps({"__metadata__": metadata, **header}, sort_keys=True).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def _digest(metadata: dict[str, str], header: dict[str, Any], data: bytes) -> str:
    return hashlib.sha256(json.dumps([metadata, header], sort_keys=True).encode() + data).hexdigest()


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([*parts, np.empty(0, dtype)]).astype(dtype, copy=False)


@dataclass(frozen=True)
class Shard:
    """A file of utterances. Arrays are views of the mapped file."""

    path: Path

    def __len__(self) -> int:
        return len(self.frames)

    def __getattr__(self, name: str) -> Any:
        """A tensor or a list of the file."""
        tensors, lists = self._content
        if name in tensors:
            return tensors[name]
        if name in lists:
            return lists[name]
        raise AttributeError(name)

    @cached_property
    def _content(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
        try:
            return _read(self.path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path}: expected a file of a speech corpus, got a damaged one ({error})") from None

    def is_whole(self, sources: str = "") -> bool:
        """All of it is there as it was written, and it was made from these sources."""
        try:
            header, content, place = _opened(self.path)
            metadata = header.pop("__metadata__")
            digest = metadata.pop("sha256", None)
            return bool(digest == _digest(metadata, header, content[place:]) and self.sources == sources)
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            return False

    @cached_property
    def starts(self) -> dict[str, NDArray[np.int64]]:
        """Where each utterance begins among the frames, the phonemes and the samples."""
        lengths = {"frames": self.frames, "phonemes": self.counts, "samples": self.sounds}
        return {name: np.concatenate(([0], np.cumsum(x, dtype=np.int64))) for name, x in lengths.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}  # sent by name, not by content

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _opened(path: Path) -> tuple[dict[str, Any], mmap.mmap, int]:
    """The header, the file, and where in it the tensors begin."""
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(content[:8], "little")
    if not 0 < size <= min(_LARGEST_HEADER, len(content) - 8):
        raise ValueError("its header is too long")
    return json.loads(content[8 : 8 + size]), content, 8 + size


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    header, content, start = _opened(path)
    metadata = header.pop("__metadata__")
    if metadata["version"] != str(VERSION):
        raise ValueError(f"version {metadata['version']}, not {VERSION}")
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        if not 0 <= first <= end <= len(content) - start:
            raise ValueError(f"{name} is beyond its end")
        place = start + first
        if name != "mel":  # small, and maybe not aligned
            flat = np.frombuffer(content[place : place + end - first], dtype)
        else:
            flat = np.frombuffer(content, dtype, (end - first) // dtype.itemsize, place)
        tensors[name] = flat.reshape(entry["shape"])
    lists = {name: json.loads(text) for name, text in metadata.items() if name not in _NOT_LISTS}
    return tensors, {"notes": [], **lists}

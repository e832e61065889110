"""A prepared corpus of speech, known by its manifest: which shards it has, what they hold, and that they are whole."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ... import durable
from ...sound import mel
from ...speech.front_end import collect_lexicon
from ...speech.spoken import SILENCE
from ..token_cache import sha256_of
from .shards import Shard

MANIFEST = "manifest.json"
_LEAST_SPREAD = 1e-3  # of a logarithm: a voice without any melody


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a logarithm, over the phonemes of a speaker."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Corpus:
    folder: Path
    train: tuple[Shard, ...]
    valid: tuple[Shard, ...]
    symbols: tuple[str, ...]  # from number 1 on; 0 is padding
    speakers: tuple[str, ...]
    pitch: tuple[Spread, ...]  # by speaker
    energy: tuple[Spread, ...]
    settings: dict[str, Any]
    fingerprint: str
    seconds: float  # to train on

    @property
    def num_train(self) -> int:
        return sum(map(len, self.train))

    def lexicon(self) -> dict[str, tuple[str, ...]]:
        """Each word of the texts to train on, as it was mostly pronounced."""
        return collect_lexicon((word, tuple(said)) for shard in self.train for word, *said in shard.pronunciations)

    @property
    def skipped(self) -> list[str]:
        return [line for shard in (*self.train, *self.valid) for line in shard.skipped]

    @property
    def notes(self) -> Counter[str]:
        """What was done to recordings before they were analysed, and to how many."""
        return Counter(line for shard in (*self.train, *self.valid) for line in shard.notes)


def seal(folder: Path, train: Sequence[Shard], valid: Sequence[Shard], settings: dict[str, Any]) -> Corpus:
    """Writes the manifest of what is there."""
    if not any(map(len, train)) or not any(map(len, valid)):
        raise too_few(folder, train, valid)
    every = (*train, *valid)
    speakers = _in_order({name for shard in train for name in shard.speaker_names}, settings.get("voices", ()))
    alone = sorted({name for shard in valid for name in shard.speaker_names} - set(speakers))
    if alone:
        raise ValueError(
            f"{folder}: expected recordings of {alone[0]} to train on, got some to hold out alone; give more of them,"
            " or leave that speaker out of metadata.csv"
        )
    content = {
        "convention": mel.CONVENTION,
        "settings": settings,
        "symbols": sorted({SILENCE, *(symbol for shard in every for symbol in shard.symbols)}),
        "speakers": speakers,
        "pitch": [_spread(np.concatenate([*_of(train, name, "pitch")])) for name in speakers],
        "energy": [_spread(np.concatenate([*_of(train, name, "energy")])) for name in speakers],
        "seconds": sum(int(shard.frames.sum()) for shard in train) * mel.HOP / mel.RATE,
        **{split: [_sealed(shard.path) for shard in part] for split, part in (("train", train), ("valid", valid))},
    }
    durable.replace(folder / MANIFEST, json.dumps(content | {"sha256": _digest(content)}).encode())
    return load(folder)


def too_few(folder: Path, train: Sequence[Shard], valid: Sequence[Shard]) -> ValueError:
    """What to raise for them."""
    found = f"got {sum(map(len, train))} and {sum(map(len, valid))}"
    skipped = [line for shard in (*train, *valid) for line in shard.skipped]
    why = f"; {len(skipped)} were skipped, the first: {skipped[0]}" if skipped else ""
    return ValueError(f"{folder}: expected sentences to train on and others to hold out, {found}{why}")


def _in_order(speakers: Collection[str], voices: Sequence[str]) -> list[str]:
    """Voices as they were asked for, so that the first is speaker 0; names of recordings as words are."""
    return [name for name in voices if name in speakers] or sorted(speakers)


def load(folder: Path) -> Corpus:
    """ValueError, one line, for what is not there or not as it was written."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"no corpus of speech in {folder}: `fullstride data speech --hours 2` makes one, and goes on with one that"
            " was interrupted"
        ) from None
    try:
        content = json.loads(text)
        digest = content.pop("sha256", None)
        if digest is not None and digest != _digest(content):
            raise ValueError(f"{MANIFEST} is not as it was written")
        if content["convention"] != mel.CONVENTION:
            raise ValueError(f"mels of convention {content['convention']}, not {mel.CONVENTION}")
        shards = {split: tuple(_checked(folder, *entry) for entry in content[split]) for split in ("train", "valid")}
        spreads = {name: tuple(Spread(*entry) for entry in content[name]) for name in ("pitch", "energy")}
        symbols, speakers = tuple(content["symbols"]), tuple(content["speakers"])
        if not len(speakers) == len(spreads["pitch"]) == len(spreads["energy"]):
            raise ValueError(f"{MANIFEST} has statistics of other speakers")
        fingerprint = hashlib.sha256(text).hexdigest()
        return Corpus(folder, shards["train"], shards["valid"], symbols, speakers, spreads["pitch"], spreads["energy"],
                      content["settings"], fingerprint, float(content["seconds"]))  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        line = f"{folder}: expected a corpus as `fullstride data speech` wrote it, got another ({error});"
        raise ValueError(f"{line} call it again: what is damaged is made anew, and the rest is kept") from None


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sealed(path: Path) -> tuple[str, int, str]:
    return path.name, path.stat().st_size, sha256_of(path).hex()


def _checked(folder: Path, name: str, size: int, sha256: str) -> Shard:
    path = folder / Path(name).name
    if not path.is_file():
        raise ValueError(f"{name} is missing")
    if path.stat().st_size != size or sha256_of(path).hex() != sha256:
        raise ValueError(f"{name} is not as it was written")
    return Shard(path)


def _of(shards: Sequence[Shard], speaker: str, what: str) -> Iterator[Any]:
    """Logarithms of the values above 0, phoneme by phoneme."""
    for shard in shards:
        if speaker in shard.speaker_names:
            is_his = np.repeat(shard.speakers == shard.speaker_names.index(speaker), shard.counts)
            values = getattr(shard, what)[is_his]
            yield np.log(values[values > 0].astype(np.float64))
    yield np.empty(0)


def _spread(logs: Any) -> tuple[float, float]:
    if not len(logs):
        return 0.0, 1.0
    deviation = float(logs.std())
    return float(logs.mean()), deviation if math.isfinite(deviation) and deviation > _LEAST_SPREAD else 1.0

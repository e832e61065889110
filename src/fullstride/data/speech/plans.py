"""What a speech corpus is made of: number by number, sentences for a synthesiser, or recordings of a folder.

A plan is sent to the processes that carry it out, and each of its utterances is a function of its number, so a
preparation that was interrupted goes on where it stopped.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...sound import mel, wav
from ...speech import textgrid
from ...speech.front_end import SYNTHESISERS
from ...speech.spoken import SILENCE, Spoken
from .. import _random
from . import recordings
from .recordings import Recording
from .texts import everyday, sentences

_HELD_OUT = 7  # stream of the seed
_MOST_HELD_OUT = 100
_LARGEST_TEXTGRID = 16 << 20  # bytes: hours of speech
_TAIL = 0.05  # seconds after the last phoneme that are silence of their own


class Planned(NamedTuple):
    name: str
    text: str
    speaker: str
    spoken: Spoken
    notes: tuple[str, ...] = ()
    """What was done to it, if it was a file of other kind."""


class Plan(Protocol):
    @property
    def settings(self) -> dict[str, Any]:
        """All that the content depends on, fit for JSON."""

    @property
    def num_train(self) -> int | None:
        """None: as many as are asked for."""

    @property
    def num_valid(self) -> int: ...

    def make(self, held_out: bool, number: int) -> Planned:
        """ValueError, one line, for what is bad input; OSError where nothing can be made."""
        ...

    def sources(self, held_out: bool, numbers: range) -> str:
        """Changes with the files that these are made from."""
        ...


@dataclass(frozen=True)
class SynthesisPlan:
    """Sentence i is spoken by voice i % number of voices. Held out: everyday sentences, each by every voice."""

    engine: str
    voices: tuple[str, ...]
    seed: int = 0
    texts: tuple[str, ...] | None = None
    """Sentences; None: generated ones, without end."""
    held_out: tuple[str, ...] = everyday.HELD_OUT

    @property
    def settings(self) -> dict[str, Any]:
        texts = None if self.texts is None else _digest(self.texts)
        voices, held_out = list(self.voices), _digest(self.held_out)
        return {"engine": self.engine, "voices": voices, "seed": self.seed, "texts": texts, "held_out": held_out}

    @property
    def num_train(self) -> int | None:
        return None if self.texts is None else len(self.texts)

    @property
    def num_valid(self) -> int:
        return len(self.held_out) * len(self.voices)

    def make(self, held_out: bool, number: int) -> Planned:
        turn, place = divmod(number, len(self.voices))
        voice = self.voices[place]
        if held_out:
            text = self.held_out[turn]
        else:
            text = sentences.sentence(self.seed, number) if self.texts is None else self.texts[number]
        name = f"{'everyday' if held_out else 'sentence'} {number} ({voice})"
        try:
            return Planned(name, text, voice, SYNTHESISERS[self.engine].speak(text, voice))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def sources(self, held_out: bool, numbers: range) -> str:
        return ""


@dataclass(frozen=True)
class FolderPlan:
    """Recordings with their alignments. Held out: `valid_share` of them, by chance of (seed, place in the list)."""

    folder: Path
    seed: int = 0
    valid_share: float = 0.05

    @property
    def settings(self) -> dict[str, Any]:
        """The names alone: texts, alignments and sounds may be mended, and are read again."""
        names = _digest(recording.name for recording in self._listed)
        return {"recordings": names, "seed": self.seed, "valid_share": self.valid_share}

    @cached_property
    def _listed(self) -> list[Recording]:
        return recordings.find(self.folder)

    @cached_property
    def _split(self) -> tuple[list[Recording], list[Recording]]:
        """For training, held out."""
        count = len(self._listed)
        order = np.argsort(_random.bits(self.seed, _HELD_OUT, np.arange(count, dtype=np.int64)), kind="stable")
        usable = [i for i in order.tolist() if not self._listed[i].wrong]  # a small folder's only one should be
        held_out = _held_out(usable, [recording.speaker for recording in self._listed], self.valid_share * count)
        train = [recording for i, recording in enumerate(self._listed) if i not in held_out]
        return train, [self._listed[i] for i in sorted(held_out)]

    @property
    def num_train(self) -> int | None:
        return len(self._split[0])

    @property
    def num_valid(self) -> int:
        return len(self._split[1])

    def make(self, held_out: bool, number: int) -> Planned:
        recording = self._split[held_out][number]
        if recording.wrong:
            raise ValueError(recording.wrong)
        sound = wav.read(_file(recording.wav, "a recording", wav.MOST_BYTES * 2))
        alignment = _file(recording.alignment, "an alignment", _LARGEST_TEXTGRID)
        try:
            phonemes, ends = textgrid.phonemes(alignment)
            words = tuple(textgrid.pronunciations(alignment))
        except OverflowError:
            raise ValueError(f"{alignment}: expected times and counts, got infinity; align this file again") from None
        if len(sound.samples) / sound.rate > ends[-1] + _TAIL and phonemes[-1] != SILENCE:
            phonemes, ends = (*phonemes, SILENCE), np.append(ends, len(sound.samples) / sound.rate)
        notes = [f"resampled from {sound.rate:,} Hz"] if sound.rate != mel.RATE else []
        notes += [f"mixed from {sound.channels} channels"] if sound.channels > 1 else []
        spoken = Spoken(sound.samples, sound.rate, phonemes, ends, words)
        return Planned(str(recording.wav), recording.text, recording.speaker, spoken, tuple(notes))

    def sources(self, held_out: bool, numbers: range) -> str:
        chosen = [self._split[held_out][number] for number in numbers]
        return _digest([r.name, r.text, r.speaker, _stamp(r.wav), _stamp(r.alignment)] for r in chosen)


def _held_out(usable: list[int], speakers: list[str], wanted: float) -> set[int]:
    """The first that are usable, but of no speaker the last one: there would be nothing to learn his voice from."""
    left = Counter(speakers[i] for i in usable)
    chosen: set[int] = set()
    for i in usable:
        if len(chosen) == min(_MOST_HELD_OUT, max(1, round(wanted))):
            break
        if left[speakers[i]] > 1:
            left[speakers[i]] -= 1
            chosen.add(i)
    return chosen or set(usable[:1])


def _digest(content: Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(list(content)).encode()).hexdigest()


def _stamp(path: Path) -> list[int]:
    """As `make` does: a file of the same size and time is the same."""
    if not path.is_file():
        return []
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _file(path: Path, what: str, most: int) -> Path:
    """A pipe would be waited for, a huge file would fill the memory."""
    if not path.is_file():
        raise ValueError(f"{path}: expected {what}, there is no such file")
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{path}: expected {what} of {most:,} bytes at most, got {size:,}")
    return path


def engine_here(wish: str | None = None) -> str:
    """The synthesiser: flite where it is installed, else eSpeak NG; or the one that is wished for."""
    if wish is not None and wish not in SYNTHESISERS:
        raise ValueError(f"--engine: expected one of {', '.join(SYNTHESISERS)}, got {wish}")
    lines = []
    for name in SYNTHESISERS if wish is None else (wish,):
        line = SYNTHESISERS[name].missing()
        if line is None:
            return name
        lines.append(f"{name}: {line}")
    why = "; ".join(lines)
    raise ValueError(f"no synthesiser to make a corpus with; {why}; or give a folder of recordings by --recordings DIR")

"""Sentences of a prepared corpus as batches for FastSpeech 2.

    pitch, energy   (log value - mean) / deviation of the speaker; where a phoneme has no voice, its pitch lies on the
                    line between its neighbours', so that the model need not learn jumps that nobody hears

Padded with zeros to the longest of the batch, phonemes and frames apart, and on to whole multiples: hundreds of
different lengths leave a kept heap full of holes and oneDNN with a primitive for each. 100 batches of 16 held 2.6 GB
and took 93 s as they came; in multiples of 32 frames and 8 phonemes 1.6 GB and 78 s (AMD EPYC, AVX512-BF16, busy).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .corpus import Corpus, Spread
from .shards import Shard

Array = NDArray[Any]
FRAMES, PHONEMES = 32, 8  # whose multiples the lengths of a batch are


@dataclass(frozen=True)
class Sentence:
    """One of them, as it is in the corpus; for what is more than training."""

    name: str
    text: str
    speaker: int
    phonemes: tuple[str, ...]
    durations: Array  # (P,) frames
    hertz: Array  # (P,); 0: no voice
    pitch: Array  # (P,), in deviations
    energy: Array  # (P,), in deviations
    mel: Array  # (T, 80), fp32
    sound: Array  # (samples,), fp32; empty unless it was held out


@dataclass(frozen=True)
class SpeechDataset:
    """Batches of (phonemes, speakers, durations, pitch, energy, mel): see models/fastspeech2.py."""

    corpus: Corpus
    held_out: bool = False

    @property
    def _shards(self) -> tuple[Shard, ...]:
        return self.corpus.valid if self.held_out else self.corpus.train

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sentence."""
        return np.concatenate([shard.frames for shard in self._shards]).astype(np.int64)

    @cached_property
    def _places(self) -> Array:
        """(N, 2): the shard and the place in it."""
        return np.array([(i, j) for i, shard in enumerate(self._shards) for j in range(len(shard))], np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def sentence(self, index: int) -> Sentence:
        number, place = self._places[index]
        shard, starts = self._shards[number], self._shards[number].starts
        p = slice(starts["phonemes"][place], starts["phonemes"][place + 1])
        t = slice(starts["frames"][place], starts["frames"][place + 1])
        n = slice(starts["samples"][place], starts["samples"][place + 1])
        speaker = self.corpus.speakers.index(shard.speaker_names[shard.speakers[place]])
        hertz = shard.pitch[p]
        return Sentence(
            shard.names[place], shard.texts[place], speaker, tuple(shard.symbols[i] for i in shard.phonemes[p]),
            shard.durations[p], hertz, _pitch(hertz, self.corpus.pitch[speaker]),
            _scaled(shard.energy[p], self.corpus.energy[speaker]), shard.mel[t].astype(np.float32),
            shard.sound[n].astype(np.float32) / 32767,
        )  # fmt: skip

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Tensor, ...]:
        sentences = [self.sentence(int(index)) for index in indices]
        ids = [np.array([self.ids[symbol] for symbol in s.phonemes], np.int64) for s in sentences]
        return (
            _padded(ids, np.int64, PHONEMES),
            torch.tensor([s.speaker for s in sentences], dtype=torch.int64),
            _padded([s.durations for s in sentences], np.int64, PHONEMES),
            _padded([s.pitch for s in sentences], np.float32, PHONEMES),
            _padded([s.energy for s in sentences], np.float32, PHONEMES),
            _padded([s.mel for s in sentences], np.float32, FRAMES),
        )

    @cached_property
    def ids(self) -> dict[str, int]:
        """The number of each phoneme; 0 is padding."""
        return {symbol: i for i, symbol in enumerate(self.corpus.symbols, 1)}


def _padded(parts: list[Array], dtype: Any, multiple: int) -> Tensor:
    length = -(-max(map(len, parts)) // multiple) * multiple
    whole = np.zeros((len(parts), length, *parts[0].shape[1:]), dtype)
    for row, part in zip(whole, parts, strict=True):
        row[: len(part)] = part
    return torch.from_numpy(whole)


def _pitch(hertz: Array, spread: Spread) -> Array:
    voiced = np.flatnonzero(hertz > 0)
    if not len(voiced):
        return np.zeros(len(hertz), np.float32)
    logs = np.interp(np.arange(len(hertz)), voiced, np.log(hertz[voiced].astype(np.float64)))
    return ((logs - spread.mean) / spread.deviation).astype(np.float32)


def _scaled(values: Array, spread: Spread) -> Array:
    """A phoneme of no frames has no energy, and gets the mean."""
    logs = np.where(values > 0, np.log(np.maximum(values, 1e-9)), spread.mean)
    return ((logs - spread.mean) / spread.deviation).astype(np.float32)

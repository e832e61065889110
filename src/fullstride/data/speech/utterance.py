"""One sentence as a model of speech learns it: phonemes, and how long, how high and how loud each of them is.

    frames of phoneme i = round(end[i] * RATE / HOP) - round(end[i - 1] * RATE / HOP)

The ends are rounded, not the lengths, so that errors do not add up. The last phoneme takes what is left of the sound.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...sound import mel, pitch, wav
from ...speech.spoken import Spoken

LONGEST = 20.0  # seconds of a sentence
_TOLERANCE = 3  # frames that an alignment may be longer than its sound


@dataclass(frozen=True)
class Utterance:
    name: str
    text: str
    speaker: str
    phonemes: tuple[str, ...]
    durations: NDArray[np.int32]  # (P,) frames
    pitch: NDArray[np.float32]  # (P,) Hz; 0: unvoiced
    energy: NDArray[np.float32]  # (P,)
    mel: NDArray[np.float16]  # (T, 80)
    sound: NDArray[np.int16]  # empty unless it was to be kept
    words: tuple[tuple[str, tuple[str, ...]], ...]  # with their phonemes

    @property
    def num_frames(self) -> int:
        return len(self.mel)


def analyse(
    name: str, text: str, speaker: str, spoken: Spoken, keep_sound: bool = False, longest: float = LONGEST
) -> Utterance:
    """ValueError, one line with the name, for what nobody should learn from."""
    wrong = wav.problem(spoken.samples, spoken.rate, longest=longest)
    if wrong is not None:
        raise ValueError(f"{name}: {wrong}")
    if not spoken.phonemes:
        raise ValueError(f"{name}: expected phonemes, got none; check the text and its alignment")
    samples = wav.resample(spoken.samples, spoken.rate, mel.RATE)
    frames, energy = mel.mel_and_energy(torch.from_numpy(samples))
    num_frames = len(frames)
    durations = _durations(name, spoken.ends, num_frames)
    hertz = pitch.pitch(samples, mel.RATE, num_frames)
    sound = np.clip(np.round(samples * 32767), -32768, 32767).astype(np.int16) if keep_sound else np.empty(0, np.int16)
    return Utterance(
        name, text, speaker, spoken.phonemes, durations,
        pitch.per_phoneme(hertz, durations, voiced_only=True), pitch.per_phoneme(energy.numpy(), durations),
        frames.numpy().astype(np.float16), sound, spoken.words,
    )  # fmt: skip


def _durations(name: str, ends: NDArray[np.float64], num_frames: int) -> NDArray[np.int32]:
    places = np.round(ends * mel.RATE / mel.HOP).astype(np.int64)
    if len(places) and places[-1] > num_frames + _TOLERANCE:
        raise ValueError(
            f"{name}: expected an alignment as long as its sound, {num_frames * mel.HOP / mel.RATE:.2f} s, got one of"
            f" {ends[-1]:.2f} s; align this recording again"
        )
    if (np.diff(places) < 0).any():
        raise ValueError(f"{name}: expected the ends of phonemes in order, got one before the last; align it again")
    places = np.minimum(places, num_frames)
    places[-1] = num_frames
    return np.diff(places, prepend=0).astype(np.int32)

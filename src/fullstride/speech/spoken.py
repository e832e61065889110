"""A spoken text: its sound, its phonemes, and when each of them ends.

    0 < ends[0] <= ends[1] <= ... <= ends[-1] <= len(samples) / rate
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from .characters import to_ascii

SILENCE = "pau"
"""A pause, whatever the synthesiser or the aligner calls it."""


@dataclass(frozen=True)
class Spoken:
    """What a synthesiser said. A vowel's name ends with its stress: 0 none, 1 primary, 2 secondary."""

    samples: NDArray[np.float32]  # in [-1, 1]
    rate: int  # samples per second
    phonemes: tuple[str, ...]
    ends: NDArray[np.float64]  # seconds, of each phoneme
    words: tuple[tuple[str, tuple[str, ...]], ...] = ()  # each with its phonemes, where they are known


def request(text: str, voice: str, engine: ModuleType) -> bytes:
    """The text as a synthesiser takes it: ASCII, what has no likeness in it left out.

    ValueError for what it cannot say, OSError where it is not installed.
    """
    if voice not in engine.VOICES:
        raise ValueError(f"expected one of {engine.NAME}'s voices {', '.join(engine.VOICES)}, got {voice!r}")
    plain, _ = to_ascii(text)
    if not any(character.isalnum() for character in plain):
        raise ValueError(f"expected words to say, got {text[:60]!r}; give at least one word or number")
    absent = engine.missing()
    if absent is not None:
        raise OSError(absent)
    return plain.encode("ascii")

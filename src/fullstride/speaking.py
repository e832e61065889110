"""Speech from a FastSpeech 2: phonemes to mel frames by the model, mel frames to sound by Griffin-Lim.

    voice = Voice(model, front_end, speakers)
    speech = voice.say("Hello there.", Manner(speed=0.9))
    wav.write(path, speech.samples, RATE)

What a voice needs besides its weights lies in the run folder: front_end.json (speech/front_end.py) and speakers.json.
"""

import contextlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from . import durable
from .sound.griffin_lim import griffin_lim
from .sound.mel import RATE
from .speech.front_end import FrontEnd

FRONT_END, SPEAKERS = "front_end.json", "speakers.json"
_MOST_PHONEMES = 1000  # of a sentence: about a minute of speech


@dataclass(frozen=True)
class Speaker:
    """One that the model knows. Deviations are those of the logarithms of Hz and of energy."""

    name: str
    pitch_deviation: float
    energy_deviation: float


@dataclass(frozen=True)
class Manner:
    """How to say it. Factors: of speed, of Hz, of loudness."""

    speed: float = 1.0
    pitch: float = 1.0
    energy: float = 1.0
    speaker: int = 0


@dataclass(frozen=True)
class Speech:
    samples: NDArray[np.float32]  # at RATE
    mel: NDArray[np.float32]  # (T, 80)
    phonemes: tuple[str, ...]
    durations: NDArray[np.int64]  # (P,) frames
    notes: tuple[str, ...]  # what was left out or guessed
    model_seconds: float
    vocoder_seconds: float

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE


class Voice:
    def __init__(self, model: nn.Module, front_end: FrontEnd, speakers: Sequence[Speaker]) -> None:
        self.model, self.front_end, self.speakers = model, front_end, list(speakers)

    def say(self, text: str, manner: Manner | None = None, iterations: int = 32) -> Speech:
        """ValueError, one line, for a text with nothing in it to say, or one that is too long."""
        manner = manner or Manner()
        reading = self.front_end.phonemes(text, self.speaker(manner).name)
        return self.say_phonemes(reading.phonemes, manner, iterations, reading.notes)

    def say_phonemes(
        self, phonemes: Sequence[str], manner: Manner | None = None, iterations: int = 32, notes: tuple[str, ...] = ()
    ) -> Speech:
        if len(phonemes) > _MOST_PHONEMES:
            raise ValueError(
                f"expected a sentence of at most {_MOST_PHONEMES} phonemes, about a minute, got {len(phonemes)};"
                " put its sentences on lines of their own"
            )
        began = time.perf_counter()
        mel, durations = predict(self.model, self.front_end.ids(phonemes), self.options(manner or Manner()))
        predicted = time.perf_counter()
        samples = sound_of(mel, iterations)
        now = time.perf_counter()
        return Speech(
            samples, mel.numpy(), tuple(phonemes), durations.numpy(), notes, predicted - began, now - predicted
        )

    def speaker(self, manner: Manner) -> Speaker:
        if not 0 <= manner.speaker < len(self.speakers):
            names = ", ".join(f"{i} {speaker.name}" for i, speaker in enumerate(self.speakers))
            raise ValueError(f"speaker: expected one of {names}; got {manner.speaker}")
        return self.speakers[manner.speaker]

    def options(self, manner: Manner) -> dict[str, Any]:
        """The manner as the model takes it: differences in standard deviations."""
        speaker = self.speaker(manner)
        return {
            "speaker": manner.speaker,
            "speed": manner.speed,
            "raise_pitch": math.log(manner.pitch) / speaker.pitch_deviation,
            "raise_energy": math.log(manner.energy) / speaker.energy_deviation,
        }


@torch.no_grad()
def predict(model: nn.Module, ids: Sequence[int], manner: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Mel frames (T, 80) and the frames of each phoneme; the model's mode stays as it is."""
    options = dict(manner)
    speaker = torch.tensor([options.pop("speaker", 0)])
    with evaluating(model):
        found = model(torch.tensor([list(ids)]), speaker, **options)
    return found.final_mel[0].float(), found.durations[0]


def sound_of(mel: Tensor, iterations: int = 32) -> NDArray[np.float32]:
    """Samples of mel frames (T, 80), by one thread.

    A second of sound takes 0.02 s of one core. Two threads wait for each other after each small product and FFT: with
    both cores of a machine busy otherwise they took 3 to 20 times as long as one, and 4 to 40 times the CPU time.
    """
    with one_thread():
        samples: NDArray[np.float32] = griffin_lim(mel, iterations).numpy()
        return samples


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def save(folder: Path, front_end: FrontEnd, speakers: Sequence[Speaker]) -> None:
    front_end.save(folder / FRONT_END)
    durable.replace(folder / SPEAKERS, json.dumps([asdict(speaker) for speaker in speakers], indent=2).encode())


def load_speakers(folder: Path) -> list[Speaker]:
    path = folder / SPEAKERS
    try:
        return [Speaker(**entry) for entry in json.loads(path.read_bytes())]
    except FileNotFoundError:
        raise ValueError(f"{folder} has no {SPEAKERS}: expected the folder of a run of recipe fastspeech2") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: expected the speakers of a voice, got a damaged file ({error})") from None


def joined(parts: Sequence[Speech], pause: float = 0.25) -> NDArray[np.float32]:
    """One sound of several sentences, a pause between two."""
    silence = np.zeros(round(pause * RATE), np.float32)
    pieces = [piece for part in parts for piece in (silence, part.samples)][1:]
    return np.concatenate(pieces) if pieces else np.empty(0, np.float32)

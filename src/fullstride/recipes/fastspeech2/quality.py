"""How good a voice is, on held-out sentences, beside an untrained model, one that knows means alone, and the vocoder.

    mel L1              with the true durations, pitch and energy, frame by frame
    distortion          mel-cepstral, dB, of speech that the model makes from phonemes alone, along a warped path
    duration error      mean over phonemes, ms
    pitch correlation   with the voice's, phoneme by phoneme; mean over sentences

All but the distortion are those of the evaluations, sentence by sentence.
"""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import speaking
from ...data.speech.corpus import Spread
from ...data.speech.dataset import Sentence
from ...sound.distortion import mel_cepstral_distortion
from ...sound.mel import HOP, RATE, mel_and_energy
from ...speech import recogniser
from . import listening

if TYPE_CHECKING:
    from ...report.section import Section
    from ...report.speech import MelPair, Quality
    from .task import FastSpeech2Task

logger = logging.getLogger(__name__)

MOST = 50  # sentences
_SHOWN = (0, 7)  # of the held-out sentences, in the report


def sections(task: "FastSpeech2Task", model: nn.Module, run: Path) -> list["Section"]:
    from ...report import speech
    from ...report.run import read

    rows_of_run = read(run)
    over_steps = speech.word_errors(rows_of_run)
    best = [row["step"] for row in rows_of_run.evals if row.get("best")]
    rows = measure(task, model, dict(over_steps).get(best[-1]) if best else None, listening.read_reference(run))
    indices = sorted({min(i, len(task.valid_data) - 1) for i in _SHOWN})
    return [speech.quality(rows, over_steps), speech.spectrograms([_pair(task, model, i) for i in indices])]


def assess(task: "FastSpeech2Task", model: nn.Module, run: Path) -> list[dict[str, Any]]:
    """Rows of a table; word error rates over as many sentences as in training, or 50 if it had none."""
    rate, reference = None, listening.read_reference(run)
    line = recogniser.missing()
    if line is None:
        count = task.config.listening.sentences or MOST
        rate = listening.word_error_rate(task, model, count)
        reference = reference or listening.reference_rates(task, count)
    else:
        logger.warning("no word error rates: %s", line)
    names = {"distortion": "mcd_db", "duration_error": "duration_ms"}
    rows = [asdict(row) for row in measure(task, model, rate, reference)]
    return [{names.get(name, name): row[name] for name in row if name != "is_bound"} for row in rows]


def measure(
    task: "FastSpeech2Task", model: nn.Module, word_error_rate: float | None = None,
    reference: dict[str, float] | None = None,
) -> list["Quality"]:  # fmt: skip
    from ...report.speech import Quality

    data = task.valid_data
    sentences = [data.sentence(i) for i in range(min(MOST, len(data)))]
    batches = [data.batch(np.array([i]), np.array([0])) for i in range(len(sentences))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.config.seed)
        untrained = task.build_model().eval()
    copy = _mean_scores([_of_copy(sentence, task) for sentence in sentences])
    given = reference or {}
    return [
        Quality("an untrained model", **_of_model(task, untrained, sentences, batches), word_error_rate=None),
        Quality("means of the corpus", **_of_means(task, sentences), word_error_rate=None),
        Quality("this model", **_of_model(task, model, sentences, batches), word_error_rate=word_error_rate),
        Quality("copy by the vocoder", copy["mel_l1"], copy["distortion"], None, None, given.get("copy"), True),
        Quality("the voice itself", 0.0, 0.0, None, None, given.get("voice"), True),
    ]


@torch.no_grad()
def _of_model(
    task: "FastSpeech2Task", model: nn.Module, sentences: list[Sentence], batches: list[tuple[Tensor, ...]]
) -> dict[str, Any]:
    rows = []
    with speaking.evaluating(model):
        for sentence, batch in zip(sentences, batches, strict=True):
            scores = task.score(model, batch)
            rows.append({
                "mel_l1": scores["mel_l1"],
                "distortion": _distortion(model(*batch[:2]).final_mel[0].float(), sentence),
                "duration_error": scores["duration_ms"],
                "pitch_correlation": scores["pitch_correlation"],
            })  # fmt: skip
    return _mean_scores(rows)


def _of_means(task: "FastSpeech2Task", sentences: list[Sentence]) -> dict[str, Any]:
    """The mean frame for every frame, the mean duration for every phoneme; means have no melody to correlate."""
    shards = task.corpus.train
    mean = sum(shard.mel.sum(0, dtype=np.float64) for shard in shards) / sum(len(shard.mel) for shard in shards)
    length = float(np.concatenate([shard.durations for shard in shards]).mean())
    rows = []
    for sentence in sentences:
        flat = np.broadcast_to(mean.astype(np.float32), sentence.mel.shape)
        rows.append({
            "mel_l1": float(np.abs(flat - sentence.mel).mean()),
            "distortion": _distortion(torch.from_numpy(flat.copy()), sentence),
            "duration_error": _milliseconds(np.full(len(sentence.durations), length), sentence),
        })  # fmt: skip
    return _mean_scores(rows) | {"pitch_correlation": None}


def _of_copy(sentence: Sentence, task: "FastSpeech2Task") -> dict[str, Any]:
    """What Griffin-Lim makes of the true mel."""
    sound = speaking.sound_of(torch.from_numpy(sentence.mel), task.config.listening.iterations)
    again, _ = mel_and_energy(torch.from_numpy(sound))
    off = (again - torch.from_numpy(sentence.mel)).abs().mean().item()
    return {"mel_l1": off, "distortion": _distortion(again, sentence)}


def _distortion(mel: Tensor, sentence: Sentence) -> float:
    return mel_cepstral_distortion(mel, torch.from_numpy(sentence.mel))


def _real(values: Tensor, sentence: Sentence) -> Any:
    """(1, P) of a batch of one sentence, without its padding."""
    return values[0, : len(sentence.phonemes)].float().numpy()


def _milliseconds(frames: Any, sentence: Sentence) -> float:
    return 1000 * HOP / RATE * float(np.abs(frames - sentence.durations).mean())


def _mean_scores(rows: list[dict[str, Any]]) -> dict[str, Any]:
    means: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if row[name] is not None]
        means[name] = float(np.mean(values)) if values else None
    return means


@torch.no_grad()
def _pair(task: "FastSpeech2Task", model: nn.Module, index: int) -> "MelPair":
    """A sentence as the voice says it, and as the model does, from phonemes alone."""
    from ...report.speech import MelPair

    sentence, corpus = task.valid_data.sentence(index), task.corpus
    batch = task.valid_data.batch(np.array([index]), np.array([0]))
    with speaking.evaluating(model):
        found = model(*batch[:2])
    voiced, pitch, energy = sentence.hertz > 0, corpus.pitch[sentence.speaker], corpus.energy[sentence.speaker]
    return MelPair(
        text=sentence.text, phonemes=sentence.phonemes,
        predicted=found.final_mel[0].float().numpy(), true=sentence.mel,
        predicted_pitch=np.where(voiced, _unscaled(_real(found.pitch, sentence), pitch), 0.0),
        true_pitch=sentence.hertz,
        predicted_energy=_unscaled(_real(found.energy, sentence), energy),
        true_energy=_unscaled(sentence.energy, energy),
        predicted_durations=_real(found.durations, sentence), true_durations=sentence.durations,
    )  # fmt: skip


def _unscaled(deviations: Any, spread: Spread) -> Any:
    """Hz, or energy, of what the model is told in standard deviations of logarithms."""
    return np.exp(spread.mean + spread.deviation * deviations)

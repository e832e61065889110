"""After each evaluation of `fastspeech2`: held-out sentences as the model says them, and as a recogniser hears them.

    samples/step-000600.wav     one sentence, so that progress can be heard
    samples/reference.json      the word error rates of the voice itself and of its copy by the vocoder, found once
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import durable, speaking
from ...data.speech.corpus import Corpus
from ...machine import cpu
from ...sound import wav
from ...sound.mel import RATE
from ...speaking import Speaker
from ...speech import recogniser
from ...speech.front_end import PADDING, FrontEnd

if TYPE_CHECKING:
    from .task import FastSpeech2Task

logger = logging.getLogger(__name__)

SAMPLES, REFERENCE = "samples", "reference.json"
Sound = tuple[Any, int]


def listen(
    task: "FastSpeech2Task", model: nn.Module, folder: Path, step: int, between: Callable[[], None]
) -> list[dict[str, Any]]:
    """The event of the report. `between` is called between two sentences, and may raise."""
    wish, data = task.config.listening, task.valid_data
    (folder / SAMPLES).mkdir(exist_ok=True)
    number, count = min(wish.sample, len(data) - 1), min(wish.sentences, len(data))
    sounds = {i: _said(task, model, i, between) for i in {number, *range(count)}}
    wav.write(folder / SAMPLES / f"step-{step:06d}.wav", sounds[number][0], RATE)
    event: dict[str, Any] = {
        "event": "speech", "text": data.sentence(number).text, "file": f"{SAMPLES}/step-{step:06d}.wav",
        "word_error_rate": None, "heard": None,
    }  # fmt: skip
    if wish.sentences and recogniser.missing() is None:
        try:
            heard = dict(zip(sounds, _heard(list(sounds.values()), between), strict=True))
            event["word_error_rate"] = rate = _rate(task, [heard[i] for i in range(count)])
            event["heard"] = heard[number]
            reference = _reference(task, folder, between)
            logger.info(
                "step %d: a recogniser gets %.0f %% of the words wrong (of the voice itself %.0f %%, of its copy"
                " %.0f %%)", step, 100 * rate, 100 * reference["voice"], 100 * reference["copy"],
            )  # fmt: skip
        except recogniser.RecogniserDied as error:  # hours of training shall not end with it
            between()  # unless what ended it was meant for this process, too
            logger.warning("step %d: not all was listened to: %s", step, error)
    return [event]


def _said(task: "FastSpeech2Task", model: nn.Module, index: int, between: Callable[[], None]) -> Sound:
    """As the model says it, with the voice's own phonemes."""
    between()
    sentence = task.valid_data.sentence(index)
    ids = [task.valid_data.ids[symbol] for symbol in sentence.phonemes]
    mel, _ = speaking.predict(model, ids, {"speaker": sentence.speaker})
    return speaking.sound_of(mel, task.config.listening.iterations), RATE


def word_error_rate(task: "FastSpeech2Task", model: nn.Module, count: int) -> float:
    """Of the first `count` held-out sentences as the model says them."""
    sounds = [_said(task, model, i, durable.no_poll) for i in range(min(count, len(task.valid_data)))]
    return _rate(task, _heard(sounds, durable.no_poll))


def _rate(task: "FastSpeech2Task", heard: list[str]) -> float:
    return recogniser.word_error_rate([task.valid_data.sentence(i).text for i in range(len(heard))], heard)


def _heard(sounds: list[Sound], between: Callable[[], None]) -> list[str]:
    return recogniser.transcribe_all(sounds, cpu.describe().num_usable_cores, between)


def _reference(task: "FastSpeech2Task", folder: Path, between: Callable[[], None]) -> dict[str, float]:
    path = folder / SAMPLES / REFERENCE
    found = read_reference(folder)
    if found is not None:
        return found
    rates = reference_rates(task, task.config.listening.sentences, between)
    durable.replace(path, json.dumps(rates).encode())
    return rates


def reference_rates(
    task: "FastSpeech2Task", count: int, between: Callable[[], None] = durable.no_poll
) -> dict[str, float]:
    """Word error rates of the voice itself, and of what the vocoder makes of its mels."""
    sentences = [task.valid_data.sentence(i) for i in range(min(count, len(task.valid_data)))]
    copies = []
    for sentence in sentences:
        between()
        copies.append((speaking.sound_of(torch.from_numpy(sentence.mel), task.config.listening.iterations), RATE))
    voice = _heard([(sentence.sound, RATE) for sentence in sentences], between)
    return {"voice": _rate(task, voice), "copy": _rate(task, _heard(copies, between))}


def read_reference(folder: Path) -> dict[str, float] | None:
    try:
        found = json.loads((folder / SAMPLES / REFERENCE).read_bytes())
        return {name: float(found[name]) for name in ("voice", "copy")}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def front_end(corpus: Corpus) -> FrontEnd:
    """That of the corpus: its synthesiser, and the words of its texts as they were spoken, for machines without it."""
    symbols = (PADDING, *corpus.symbols)
    engine = corpus.settings.get("engine", "lexicon")
    voice = corpus.settings["voices"][0] if "voices" in corpus.settings else ""
    return FrontEnd(engine, voice, symbols, corpus.lexicon())


def speakers(corpus: Corpus) -> list[Speaker]:
    spreads = zip(corpus.speakers, corpus.pitch, corpus.energy, strict=True)
    return [Speaker(name, pitch.deviation, energy.deviation) for name, pitch, energy in spreads]

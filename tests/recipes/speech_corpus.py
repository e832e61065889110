"""A corpus of 16 short sentences and 4 held out, spoken by eSpeak NG, and a model small enough for it."""

import atexit
import functools
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fullstride import recipes
from fullstride.data.speech import corpus, shards
from fullstride.data.speech.shards import Shard
from fullstride.data.speech.utterance import analyse
from fullstride.recipes.fastspeech2 import FastSpeech2Config
from fullstride.recipes.fastspeech2.task import FastSpeech2Task
from fullstride.speech import espeak
from fullstride.train.trainer import Trainer

TRAIN = (
    "Hello there.", "The king went out.", "A dog ran by.", "We like tea.", "Open the door.", "He sold a red boat.",
    "She sings well.", "It was cold and dark.", "Come in, please.", "The queen went in.", "They had seven ships.",
    "Birds fly south.", "I know her voice.", "My house is old.", "You may go home now.", "Rain fell on the town.",
)  # fmt: skip
HELD_OUT = ("The dog went home.", "We know the king.", "Please open it.", "A cold rain fell.")
VOICES = ("en-us", "en-gb")
MODEL = {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "hidden": 24, "variance_bins": 16}


@functools.cache
def tiny_corpus(voices: int = 1) -> Path:
    """Its folder; made once a process, 0.5 s. Do not write into it."""
    folder = Path(tempfile.mkdtemp(prefix="speech-"))
    atexit.register(_remove, folder, os.getpid())
    made = [_shard(folder, split, texts, VOICES[:voices]) for split, texts in (("train", TRAIN), ("valid", HELD_OUT))]
    corpus.seal(folder, made[:1], made[1:], {"engine": "espeak", "voices": list(VOICES[:voices])})
    return folder


def _shard(folder: Path, split: str, texts: tuple[str, ...], voices: tuple[str, ...]) -> Shard:
    """The voices take turns."""
    utterances = []
    for i, text in enumerate(texts):
        voice = voices[i % len(voices)]
        utterances.append(analyse(f"{split} {i}", text, voice, espeak.speak(text, voice), keep_sound=split == "valid"))
    path = folder / f"{split}-00000.safetensors"
    shards.write(path, utterances, [])
    return Shard(path)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a fork
        shutil.rmtree(folder, ignore_errors=True)


def tiny(voices: int = 1, **changes: object) -> FastSpeech2Config:
    """Four steps of 2 x 4 sentences."""
    base = recipes.fastspeech2().replace(
        epochs=None, steps=4, micro_batch=4, accumulate=2, model=MODEL, threads=1, precision="fp32",
        data={"path": str(tiny_corpus(voices)), "workers": 0}, listening={"sentences": 0, "iterations": 2},
        schedule={"warmup": 0}, evaluation={"every": 2, "batch": 4}, checkpoints={"every": 2},
        logging={"every": 1},
    )  # fmt: skip
    return base.replace(**changes)


@functools.cache
def tiny_run(voices: int = 1) -> Path:
    """The folder of a run whose voice says about six frames a phoneme; made once a process. Do not write into it."""
    folder = Path(tempfile.mkdtemp(prefix="speech-run-"))
    atexit.register(_remove, folder, os.getpid())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastSpeech2Task, "build_model", _talkative(FastSpeech2Task.build_model))
        trainer = Trainer(tiny(voices, steps=2, optimizer={"lr": 1e-3}), folder / "run")
        trainer.quiet = True  # whichever test asks first reads what is printed
        trainer.fit()
    return folder / "run"


def _talkative(build: Callable[[FastSpeech2Task], nn.Module]) -> Callable[[FastSpeech2Task], nn.Module]:
    def built(task: FastSpeech2Task) -> nn.Module:
        model: Any = build(task)
        nn.init.constant_(model.duration_predictor.output.bias, math.log(1 + 6))
        return model

    return built

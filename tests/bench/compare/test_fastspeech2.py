"""A voice against the same in plain PyTorch, whose process loads the model's file alone."""

import re

import pytest

from fullstride.bench.compare import benchmark as compare
from fullstride.bench.step import benchmark as step

from ...recipes.speech_corpus import tiny


def test_both_sides_of_a_voice_take_the_same_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "measure_peaks", lambda: {"fp32": 100.0, "bf16": None})
    config = tiny(steps=9, model={"dropout": 0.0, "predictor_dropout": 0.0}, optimizer={"lr": 1e-3})
    said: list[str] = []
    found = compare.run(config, 0.05, to=tmp_path, say=said.append)
    ours, stock = (side["losses"] for side in found["sides"])
    assert len(stock) >= 3
    assert ours == pytest.approx(stock, rel=1e-4)
    assert stock[-1] < stock[0]
    frames = 2 * 4 * config.task().units_per_sample
    line = rf"^fastspeech2, accumulation 2: [\d,]+ parameters, {frames} frames a step$"
    assert re.search(line, "\n".join(said), re.MULTILINE)

"""A Llama against the same in plain PyTorch, whose process loads the model's file alone."""

import re

import pytest

from fullstride.bench.compare import benchmark as compare
from fullstride.bench.step import benchmark as step

from ...recipes.test_llama import VERSE, tiny


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(VERSE * 20, encoding="utf-8")
    return tmp_path / "texts"


def test_both_sides_of_a_llama_take_the_same_steps(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "measure_peaks", lambda: {"fp32": 100.0, "bf16": None})
    said: list[str] = []
    found = compare.run(tiny(texts, accumulate=2), 0.05, to=tmp_path / "study", say=said.append)
    ours, stock = (side["losses"] for side in found["sides"])
    assert len(stock) >= 6
    assert ours == pytest.approx(stock, rel=1e-4)
    line = r"^llama-char, accumulation 2: [\d,]+ parameters, 128 tokens a step$"
    assert re.search(line, "\n".join(said), re.MULTILINE)


def test_data_that_is_not_there_is_an_error_in_one_line(tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match="missing") as caught:
        compare.run(tiny(tmp_path / "missing"), 0.05, to=tmp_path / "study", say=str)
    assert "\n" not in str(caught.value)

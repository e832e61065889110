"""A CLIP against the same in plain PyTorch, whose process loads the model's file alone."""

import re

import pytest
import torch
from safetensors.torch import load_file

from fullstride.bench.compare import benchmark as compare
from fullstride.bench.compare.folder import Folder
from fullstride.bench.step import benchmark as step
from fullstride.bench.step.cases import Case
from fullstride.bench.step.side import Training

from ...recipes.tiny_clip import tiny


def test_both_sides_of_a_clip_take_the_same_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "measure_peaks", lambda: {"fp32": 100.0, "bf16": None})
    config = tiny(steps=9, accumulate=2, model={"dropout": 0.0}, optimizer={"lr": 1e-3})
    said: list[str] = []
    found = compare.run(config, 0.05, to=tmp_path, say=said.append)
    ours, stock = (side["losses"] for side in found["sides"])
    assert len(stock) >= 3
    assert ours == pytest.approx(stock, rel=1e-4)
    line = r"^clip-small, accumulation 2: [\d,]+ parameters, 12 pairs a step$"
    assert re.search(line, "\n".join(said), re.MULTILINE)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "settings", [{}, {"fullstride": "fp32"}, {"fullstride": "bf16"}], ids=["stock", "fp32", "bf16"]
)
def test_a_side_saves_its_weights_in_fp32_for_anybody_to_load(settings, tmp_path):
    (tmp_path / "recipe").mkdir()
    folder = Folder(tmp_path / "recipe", tiny())
    folder.provide(2)
    training = Training(Case("clip-small", 1, ("fp32",), recipe=str(folder.path)).config(**settings))
    training.run(1)
    path = str(tmp_path / "weights.safetensors")
    assert training.save(path) == {"saved": path}
    found, expected = load_file(path), training.model.state_dict()
    assert found.keys() == tiny().task().build_model().state_dict().keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name
    assert not torch.equal(found["log_scale"], load_file(folder.path / "weights.safetensors")["log_scale"])
    assert len(training.run(1)["losses"]) == 1  # it goes on

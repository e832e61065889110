"""A voice as .onnx says in ONNX Runtime what it says here, sentences of any length."""

import json

import numpy as np
import pytest
import torch

from fullstride.recipes.fastspeech2 import files, onnx
from fullstride.speaking import predict
from fullstride.train import evaluation
from fullstride.train.export import export_as_others

from .speech_corpus import tiny_run


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    pytest.importorskip("onnxscript", reason="of the extra onnx")
    runtime = pytest.importorskip("onnxruntime", reason="which runs what was exported")
    target = tmp_path_factory.mktemp("onnx") / "voice.onnx"
    assert export_as_others(tiny_run(2), target) == (2, [target])
    assert [file.name for file in target.parent.iterdir()] == ["voice.onnx"]
    return runtime.InferenceSession(str(target), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def voice():
    return files.load_voice(tiny_run(2), lambda: evaluation.find(tiny_run(2)).tensors["model"])


@pytest.mark.parametrize("count", [2, 7, 8, 60])  # whose ends are 0.01 frames off what rounds up or down
@pytest.mark.parametrize(("speaker", "speed", "pitch"), [(0, 1.0, 0.0), (1, 0.7, 0.5)])
def test_a_sentence_of_any_length_is_ours_to_rounding(session, voice, count, speaker, speed, pitch):
    ids = torch.randint(1, len(voice.front_end.symbols), (count,), generator=torch.Generator().manual_seed(1)).tolist()
    expected, durations = predict(
        voice.model, ids, {"speaker": speaker, "speed": speed, "raise_pitch": pitch, "raise_energy": -pitch}
    )
    numbers = {"speed": speed, "raise_pitch": pitch, "raise_energy": -pitch}
    inputs = {name: np.array(value, np.float32) for name, value in numbers.items()}
    mel, frames = session.run(None, inputs | {"phonemes": np.array([ids]), "speaker": np.array([speaker])})
    assert frames[0].tolist() == durations.tolist()
    assert mel.shape == (1, *expected.shape)
    assert np.abs(mel[0] - expected.numpy()).max() < 1e-4


def test_the_file_says_what_its_numbers_mean(session, voice):
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["symbols"]) == list(voice.front_end.symbols)
    assert [speaker["name"] for speaker in json.loads(facts["speakers"])] == ["en-us", "en-gb"]
    assert (facts["mel"], facts["rate"], facts["hop"]) == ("hifigan-22k", "22050", "256")


def test_without_its_packages_it_says_what_to_install_and_what_else_works(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'fullstride\[onnx\]', or export a folder") as caught:
        export_as_others(tiny_run(2), tmp_path / "voice.onnx")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())

"""The folder of an exported voice: another program loads it, and it is whole or not there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fullstride.recipes.fastspeech2 import files
from fullstride.speaking import Manner
from fullstride.train import evaluation
from fullstride.train.export import export, export_as_others

from ..patience import PATIENCE
from .speech_corpus import tiny_run

TEXT = "The king went home."
# Another program: what it may import is Python, torch and safetensors.
PROGRAM = """
import importlib.util, json, sys
sys.modules["fullstride"] = None
import numpy, torch
from safetensors.torch import load_file
folder, phonemes, target = sys.argv[1:]
spec = importlib.util.spec_from_file_location("voice", folder + "/model.py")
voice = importlib.util.module_from_spec(spec)
spec.loader.exec_module(voice)
model = voice.build(**json.load(open(folder + "/config.json"))["arguments"]).eval()
model.load_state_dict(load_file(folder + "/model.safetensors"))
symbols = json.load(open(folder + "/front_end.json"))["symbols"]
ids = torch.tensor([[symbols.index(phoneme) for phoneme in json.loads(phonemes)]])
with torch.no_grad():
    numpy.save(target, model(ids, torch.tensor([1])).final_mel[0].numpy())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("export") / "voice"
    step, files = export_as_others(tiny_run(2), target)
    assert (step, files) == (2, [target])
    return target


def load(folder):
    return files.load_voice(folder, pytest.fail)


def test_it_has_weights_model_and_what_is_needed_besides(folder):
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json", "front_end.json", "model.py", "model.safetensors", "speakers.json"
    ]  # fmt: skip
    facts = json.loads((folder / "config.json").read_text())
    assert (facts["mel"], facts["rate"], facts["hop"], facts["fft"]) == ("hifigan-22k", 22050, 256, 1024)
    assert facts["arguments"]["speakers"] == 2


def test_a_program_without_this_package_predicts_the_same_mels(folder, tmp_path):
    voice = load(folder)
    speech = voice.say(TEXT, Manner(speaker=1), iterations=1)
    words = [sys.executable, "-c", PROGRAM, folder, json.dumps(speech.phonemes), tmp_path / "mel.npy"]
    subprocess.run(list(map(str, words)), check=True, timeout=PATIENCE)
    found = np.load(tmp_path / "mel.npy")
    assert found.shape == speech.mel.shape
    assert np.abs(found - speech.mel).max() < 1e-5


def test_weights_are_those_of_the_checkpoint(folder, tmp_path):
    expected = evaluation.find(tiny_run(2)).tensors["model"]
    export(tiny_run(2), tmp_path / "model.safetensors")
    for found in (load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_folder_that_is_there_is_kept_unless_told_otherwise(tmp_path):
    (tmp_path / "voice").mkdir()
    (tmp_path / "voice" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="voice is there already"):
        export_as_others(tiny_run(2), tmp_path / "voice")
    assert [file.name for file in (tmp_path / "voice").iterdir()] == ["mine.txt"]
    export_as_others(tiny_run(2), tmp_path / "voice", replace=True)
    assert (tmp_path / "voice" / "model.py").is_file()
    assert [file.name for file in tmp_path.iterdir()] == ["voice"]


def test_a_run_without_its_front_end_names_that_file(tmp_path):
    run = Path(shutil.copytree(tiny_run(2), tmp_path / "run"))
    (run / "front_end.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"front_end\.json"):
        export_as_others(run, tmp_path / "voice")
    assert not (tmp_path / "voice").exists()


def test_another_ending_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"--to: expected a name that ends with \.safetensors.*, or a folder's, got"):
        export_as_others(tiny_run(2), tmp_path / "voice.gguf")


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("config.json", lambda path: path.write_text("{"), "expected the config of an exported voice, got a damaged"),
        ("config.json", lambda path: path.write_text("[]"), "expected the config of an exported voice, got a damaged"),
        ("config.json", lambda path: path.write_text('{"arguments": {"x": 1}}'), "expected weights that fit its"),
        ("config.json", lambda path: path.write_text('{"arguments": 1}'), "expected the config of an exported voice"),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:99]), "expected the weights of a voice"),
        ("model.safetensors", lambda path: path.unlink(), "expected the weights of a voice, got none that are whole"),
        ("model.safetensors", lambda path: save_file({"x": torch.zeros(2)}, path), "expected weights that fit its"),
    ],
)
def test_a_damaged_folder_is_one_line(folder, tmp_path, name, spoil, message):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    spoil(tmp_path / name)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)

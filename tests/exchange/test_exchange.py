"""What holds for every format: how a file is known, and how it is written."""

import io
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fullstride import durable, exchange
from fullstride.exchange import placing

from .saved_models import CHARACTERS, SHAPE, saved_of

pytest.importorskip("gguf")
TARGETS = ["model.bin", "model.gguf", "folder"]


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def zipped():
    file = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, file)
    return file.getvalue()


def test_importing_it_does_not_import_torch():
    code = "import sys, fullstride.exchange as e; e.FORMATS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.bin", b"", "an empty file; expected a llama2.c .bin"),
        ("pytorch_model.bin", zipped(), "a pickle of PyTorch, which can run any code when it is read; save it with"),
        ("model.bin", pickle.dumps({"a": 1}, 2), "a pickle of PyTorch"),
        ("model.pt", pickle.dumps({"a": 1}), "a pickle of PyTorch"),
        ("model.gguf", b"GGML" + bytes(100), "no model that is known here; expected a llama2.c .bin"),
        ("model.gguf", b"FUGG" + bytes(100), "no model that is known here"),
        ("config.json", b'{"model_type": "llama"}', "a part of a Hugging Face folder; give the folder"),
        ("notes.txt", b"Dear diary, ...", "no model that is known here"),
        ("model.bin", b"Dear diary, it is a fine day today.", "expected a llama2.c checkpoint, got a file that"),
        ("model.safetensors", b"Dear diary, it is a fine day.", "weights without a config; give the Hugging Face"),
    ],
)
def test_a_foreign_file_gets_one_clear_line(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    for call in (exchange.read, exchange.shape_of):
        with pytest.raises(ValueError, match=words) as refused:
            call(tmp_path / name)
        assert str(refused.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(refused.value)


def test_what_is_not_there_and_what_is_no_model_get_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*nothing\.bin: expected a llama2.c .bin, a Hugging Face folder"):
        exchange.read(tmp_path / "nothing.bin")
    with pytest.raises(ValueError, match=r"a folder without config\.json; expected a llama2.c .bin"):
        exchange.read(tmp_path)
    (tmp_path / "config.yaml").write_text("recipe: llama")
    with pytest.raises(ValueError, match=r"a folder without config\.json; it is a run: `fullstride export`"):
        exchange.read(tmp_path)


def test_a_format_is_known_by_its_content_and_not_by_its_name(tmp_path):
    exchange.write(tmp_path / "model.gguf", saved_of())
    (tmp_path / "model.gguf").rename(tmp_path / "model.bin")
    assert exchange.shape_of(tmp_path / "model.bin") == SHAPE


def test_a_name_of_no_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model\.onnx: expected a name that ends with \.bin, \.gguf or \.safe"):
        exchange.write(tmp_path / "model.onnx", saved_of())


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_there_is_replaced_only_if_asked_for(target, tmp_path):
    exchange.write(tmp_path / target, saved_of(tokenizer=CHARACTERS))
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=f"{target} is there already: give another name, or --force to replace it"):
        exchange.write(tmp_path / target, saved_of(seed=1))
    assert tree(tmp_path) == before
    exchange.write(tmp_path / target, saved_of(seed=1, tokenizer=CHARACTERS), replace=True)
    found = exchange.read(tmp_path / target)
    assert torch.equal(found.tensors["norm.weight"], saved_of(seed=1).tensors["norm.weight"])
    assert tree(tmp_path).keys() == before.keys()


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_a_disk_that_is_full_leaves_all_as_it_was(target, there, tmp_path, monkeypatch):
    if there:
        exchange.write(tmp_path / target, saved_of(tokenizer=CHARACTERS))
    before = tree(tmp_path)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(placing, "durable", SimpleNamespace(sync=full, remove=durable.remove))
    with pytest.raises(OSError, match=f"cannot write .*{target}: No space left on device"):
        exchange.write(tmp_path / target, saved_of(seed=1, tokenizer=CHARACTERS), replace=True)
    assert tree(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {name.split("/")[0] for name in before}


@pytest.mark.parametrize("target", TARGETS)
def test_a_place_that_is_not_there_is_said(target, tmp_path):
    with pytest.raises(ValueError, match=f"cannot write .*{target}: there is no folder .*missing"):
        exchange.write(tmp_path / "missing" / target, saved_of())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm.weight": None}, "expected a tensor norm.weight, got none"),
        ({"extra": torch.ones(1)}, "a tensor extra that no Llama has"),
        ({"norm.weight": torch.ones(3)}, r"expected norm.weight of size \(32,\), got \(3,\)"),
        ({"norm.weight": torch.ones(32, dtype=torch.bfloat16)}, "expected norm.weight in float32, got bfloat16"),
        ({"head.weight": torch.ones(271, 32)}, "the model is tied, but its head.weight differs from embedding.weight"),
    ],
)
def test_weights_that_are_not_the_models_are_not_written(target, changes, words, tmp_path):
    saved = saved_of()
    saved.tensors.update(changes)
    tensors = {name: tensor for name, tensor in saved.tensors.items() if tensor is not None}
    with pytest.raises(ValueError, match=words):
        exchange.write(tmp_path / target, exchange.SavedModel(saved.shape, tensors))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_a_tied_head_may_be_left_out(target, tmp_path):
    saved = saved_of()
    del saved.tensors["head.weight"]
    exchange.write(tmp_path / target, saved)
    assert exchange.read(tmp_path / target).tensors["head.weight"].shape == (271, 32)


@pytest.mark.parametrize("target", TARGETS)
def test_weights_that_want_gradients_or_are_views_are_written(target, tmp_path):
    saved = saved_of()
    expected = saved.tensors["layers.0.mlp.gate.weight"]
    saved.tensors["layers.0.mlp.gate.weight"] = torch.nn.Parameter(expected.t().contiguous().t())
    exchange.write(tmp_path / target, saved)
    assert torch.equal(exchange.read(tmp_path / target).tensors["layers.0.mlp.gate.weight"], expected)


@pytest.mark.parametrize("target", ["model.bin", "model.gguf", "folder/model.safetensors"])
def test_others_may_read_what_is_written(target, tmp_path):
    before = os.umask(0o022)
    try:
        exchange.write(tmp_path / target.split("/")[0], saved_of())
    finally:
        os.umask(before)
    assert (tmp_path / target).stat().st_mode & 0o777 == 0o644


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "folder").mkdir()
    exchange.write(tmp_path / "folder", saved_of())
    assert exchange.shape_of(tmp_path / "folder") == SHAPE


def test_a_folder_with_more_than_a_model_is_never_replaced(tmp_path):
    exchange.write(tmp_path / "folder", saved_of())
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"a folder with more than a model, such as thesis\.txt; give another name"):
        exchange.write(tmp_path / "folder", saved_of(), replace=True)
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "years of work"


def test_a_file_is_not_replaced_by_a_folder_nor_a_folder_by_a_file(tmp_path):
    (tmp_path / "name").write_text("mine")
    with pytest.raises(ValueError, match="expected the name of a new folder, got a file"):
        exchange.write(tmp_path / "name", saved_of(), replace=True)
    assert (tmp_path / "name").read_text() == "mine"


def test_the_name_of_the_tokenizer_is_not_for_the_model(tmp_path):
    with pytest.raises(ValueError, match=r"this is the tokenizer's name; give the model another, such as model\.bin"):
        exchange.write(tmp_path / "tokenizer.bin", saved_of(tokenizer=CHARACTERS))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_that_may_not_grow_leaves_nothing_behind(target, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    saved = saved_of()
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match=f"cannot write .*{target}: .*(File too large|is the disk full)"):
            exchange.write(tmp_path / target, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_may_be_written_in_the_place_it_was_read_from(target, tmp_path):
    exchange.write(tmp_path / target, saved_of(tokenizer=CHARACTERS))
    before = tree(tmp_path)
    exchange.write(tmp_path / target, exchange.read(tmp_path / target), replace=True)
    assert tree(tmp_path) == before

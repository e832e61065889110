"""Folders of a CLIP: what `fullstride export` writes for transformers, and what `--init` takes from it."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fullstride import cli
from fullstride.exchange import huggingface_clip
from fullstride.models import clip
from fullstride.recipes import config_files
from fullstride.recipes.clip import files
from fullstride.run_folder import metrics
from fullstride.tokens import captions
from fullstride.train import evaluation
from fullstride.train.checkpoints.store import Store
from fullstride.train.trainer import Trainer

from ..cli.commands import one_line
from ..exchange.clip_models import SHAPE, change, model_of
from ..tokens.clip_files import vocabulary, write_clip_files
from ..train.runs import assert_same_tensors, final, losses
from .drawn import SCENES, draw_pairs
from .tiny_clip import MODEL, tiny, tiny_run

transformers = pytest.importorskip("transformers")

TEXTS = [SCENES.caption(i) for i in range(6)] + ["A  red\tcircle, and\u00a0a \u4e2d ring", "x" * 200]
MEAN, STD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
WORDS = len(vocabulary())
THEIRS = SHAPE | {"vocabulary": WORDS, "end": WORDS - 1, "context": 30}


def export(run, target, *words):
    assert cli.main(["export", str(run), "--to", str(target), *words]) == 0
    return target


def load(source):
    return files.load(source, lambda: evaluation.find(source).tensors["model"])


def fit(config, run):
    trainer = Trainer(config, run)
    trainer.quiet = True
    trainer.fit()
    return run


def back_to_step_2(run):
    """As if the run had been killed before its fourth step was saved."""
    store = Store(run / "checkpoints")
    shutil.rmtree(store.path(4))
    assert store.newest().step == 2


def pictures(size):
    """Real ones, of the size of the model."""
    from PIL import Image

    images = [Image.fromarray(SCENES.picture(i)).resize((size, size), Image.Resampling.BICUBIC) for i in range(5)]
    return images, np.stack([np.array(image) for image in images])


# ---- what is written -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["characters", "bpe"])
def run(request, tmp_path_factory):
    if request.param == "characters":
        return tiny_run()
    pytest.importorskip("sentencepiece")
    return fit(tiny(data={"tokenizer": "bpe", "vocabulary": 512}), tmp_path_factory.mktemp("bpe") / "run")


def test_transformers_computes_our_logits_from_an_exported_folder(run, tmp_path):
    folder, ours = export(run, tmp_path / "clip"), load(run)
    pixels = pictures(ours.image)[1]
    with torch.no_grad():
        image = clip.encode_images(ours.model, ours.scaling(pixels))
        text = clip.encode_texts(ours.model, ours.captions.batch(TEXTS, ours.context))
        expected = ours.model.scale * image @ text.t()
    model, report = transformers.CLIPModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        TEXTS, padding=True, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        found = model.eval()(input_ids=tokens["input_ids"], pixel_values=ours.scaling(pixels)).logits_per_image
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_the_preprocessor_of_the_folder_makes_the_pictures_that_the_model_was_trained_on(tmp_path):
    run = fit(tiny(steps=1, data={"mean": MEAN, "std": STD}), tmp_path / "run")
    folder = export(run, tmp_path / "clip")
    images, pixels = pictures(16)
    processor = transformers.CLIPImageProcessor.from_pretrained(folder)
    found = processor(images=images, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(found, load(run).scaling(pixels), rtol=0, atol=1e-5)
    assert load(folder).scaling == load(run).scaling


def test_a_safetensors_file_has_the_weights_of_the_checkpoint(tmp_path, capsys):
    target = export(tiny_run(), tmp_path / "clip.safetensors", "--checkpoint", "last")
    expected = evaluation.find(tiny_run(), "last").tensors["model"]
    found = load_file(target)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert f"{target}: {len(expected)} tensors of step 4" in capsys.readouterr().out


def test_another_ending_is_one_line(tmp_path, capsys):
    tiny_run()
    capsys.readouterr()
    assert cli.main(["export", str(tiny_run()), "--to", str(tmp_path / "clip.gguf")]) == 2
    line = one_line(capsys.readouterr().err)
    assert "--to: expected a name that ends with .safetensors, or a folder's, got" in line


def test_a_run_without_its_tokenizer_is_one_line_and_writes_nothing(tmp_path, capsys):
    run = shutil.copytree(tiny_run(), tmp_path / "run")
    (run / "characters.json").unlink()
    capsys.readouterr()
    assert cli.main(["export", str(run), "--to", str(tmp_path / "clip")]) == 2
    assert "run: expected a tokenizer (tokenizer.model, characters.json" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "clip").exists()


# ---- what is started from --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """As transformers writes one. Do not write into it."""
    folder = tmp_path_factory.mktemp("theirs") / "clip"
    model_of(THEIRS).save_pretrained(folder)
    write_clip_files(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": MEAN, "image_std": STD}))
    return folder


NO_MODEL = dict.fromkeys(MODEL)  # all of it is the folder's


def fine_tune(folder, **changes):
    data = {"tokenizer": "bpe"}
    return tiny(init=str(folder), model=NO_MODEL, data=data, steps=2, checkpoints={"every": 1}).replace(**changes)


def test_training_starts_from_exactly_the_weights_of_the_folder(theirs, tmp_path):
    run = fit(fine_tune(theirs, optimizer={"lr": 1e-30, "weight_decay": 0.0}, schedule={"floor": 0}), tmp_path / "run")
    expected = huggingface_clip.read(theirs).tensors
    found = evaluation.find(run, "last").tensors["model"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_model_tokenizer_and_normalisation_are_those_of_the_folder(theirs, tmp_path):
    run = fit(fine_tune(theirs), tmp_path / "run")
    config: Any = config_files.read(run / "config.yaml")
    assert {name: config.model.shape()[name] for name in MODEL} == {name: THEIRS[name] for name in MODEL}
    assert (list(config.data.mean), list(config.data.std)) == (MEAN, STD)
    found, expected = (captions.load_from(folder) for folder in (run, theirs))
    assert found.encode("the king and 12 rings", 30) == expected.encode("the king and 12 rings", 30)
    assert (run / "merges.txt").read_bytes() == (theirs / "merges.txt").read_bytes()
    assert load(run).scaling == config.data.scaling()


def test_a_run_goes_on_to_the_same_bits_after_the_folder_is_gone(theirs, tmp_path):
    folder = shutil.copytree(theirs, tmp_path / "clip")
    whole = fit(fine_tune(folder, steps=4, checkpoints={"every": 2, "keep": 9}), tmp_path / "whole")
    back_to_step_2(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(folder)
    assert cli.main(["resume", str(tmp_path / "run"), "--quiet", "--no-report"]) == 0
    assert losses(tmp_path / "run") == losses(whole)
    assert_same_tensors(final(tmp_path / "run")[0], final(whole)[0])


def test_what_was_fine_tuned_is_exported_for_transformers_again(theirs, tmp_path):
    run = fit(fine_tune(theirs), tmp_path / "run")
    folder, ours = export(run, tmp_path / "clip"), load(run)
    assert (folder / "tokenizer.json").read_bytes() == (theirs / "tokenizer.json").read_bytes()
    assert huggingface_clip.shape_of(folder) == huggingface_clip.shape_of(theirs)
    assert huggingface_clip.normalisation_of(folder) == (tuple(MEAN), tuple(STD))
    model, tokenizer = (kind.from_pretrained(folder) for kind in (transformers.CLIPModel, transformers.AutoTokenizer))
    tokens = tokenizer(TEXTS, padding=True, truncation=True, max_length=30, return_tensors="pt")["input_ids"]
    pixels = ours.scaling(pictures(16)[1])
    with torch.no_grad():
        found = model.eval()(input_ids=tokens, pixel_values=pixels).logits_per_image
        text = clip.encode_texts(ours.model, ours.captions.batch(TEXTS, 30))
        expected = ours.model.scale * clip.encode_images(ours.model, pixels) @ text.t()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_words_that_no_caption_has_are_left_out(theirs, tmp_path):
    """Of a model whose embedding was padded to a round number."""
    folder = shutil.copytree(theirs, tmp_path / "clip")
    model_of(THEIRS | {"vocabulary": WORDS + 8}).save_pretrained(folder)
    task = fine_tune(folder).task()
    model = task.build_model()
    task.load_weights(model)
    expected = huggingface_clip.read(folder).tensors["text.embedding.weight"]
    assert torch.equal(model.text.embedding.weight, expected[:WORDS])


def test_a_run_is_started_from_what_a_run_has_exported(tmp_path):
    folder = export(tiny_run(), tmp_path / "clip")
    task = fine_tune(folder).task()
    model = task.build_model()
    task.load_weights(model)
    assert task.captions.encode(TEXTS[0], 40) == load(tiny_run()).captions.encode(TEXTS[0], 40)
    assert_same_tensors({"": dict(model.state_dict())}, {"": load(tiny_run()).model.state_dict()})


# ---- what contradicts the folder -------------------------------------------------------------------------------------

TINY = [
    "--steps", "1", "--micro-batch", "4", "--data.num-train", "8", "--data.num-valid", "4", "--data.workers", "0",
    "--threads", "1", "--precision", "fp32", "--quiet", "--no-report",
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--model.image", "32"], "model.image: expected 16, as in THERE, got 32"),
        (["--model.text-layers", "4"], "model.text_layers: expected 1, as in THERE, got 4"),
        (["--model.activation", "quick_gelu"], "model.activation: expected gelu, as in THERE, got quick_gelu"),
        (["--data.tokenizer", "characters"], "data.tokenizer: expected that of THERE, or a folder with another, got"),
        (["--data.mean", "0", "0", "0"], "data.mean: expected [0.1, 0.2, 0.3], as in THERE, got [0.0, 0.0, 0.0]"),
        (["--data.tokenizer", "RUN"], "init: the weights of THERE do not fit the model that is asked for"),
        (["--init", "nowhere"], "nowhere: expected a Hugging Face folder of a CLIP, got none: there is no config.json"),
    ],
)
def test_wishes_that_contradict_the_folder_are_one_line(theirs, tmp_path, capsys, words, line):
    known = {"RUN": str(tiny_run())}
    capsys.readouterr()
    arguments = ["train", "clip-small", "--init", str(theirs), "--run", str(tmp_path / "run"), *TINY]
    assert cli.main([*arguments, *(known.get(word, word) for word in words)]) == 2
    assert line.replace("THERE", str(theirs)) in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: change(folder / "config.json", model_type="bert"), "expected model_type clip, got 'bert'"),
        (lambda folder: [(folder / n).unlink() for n in ("tokenizer.json", "vocab.json", "merges.txt")],
         "expected a tokenizer (tokenizer.model, characters.json, tokenizer.json), got none"),
    ],
    ids=["no weights", "another model", "no tokenizer"],
)  # fmt: skip
def test_a_folder_that_is_not_whole_is_one_line(theirs, tmp_path, capsys, spoil, line):
    folder = shutil.copytree(theirs, tmp_path / "clip")
    spoil(folder)
    arguments = ["train", "clip-small", "--init", str(folder), "--run", str(tmp_path / "run"), *TINY]
    assert cli.main(arguments) == 2
    assert line in one_line(capsys.readouterr().err)


# ---- the tokenizer of a run ------------------------------------------------------------------------------------------


def test_a_run_keeps_its_tokenizer_when_its_data_has_changed(tmp_path, monkeypatch, capsys):
    """The characters of the captions are others then: made anew, none of its ids would be the same."""
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))
    paths = draw_pairs(tmp_path / "pairs", 12)
    data = {"name": "pairs", "path": str(tmp_path / "pairs"), "valid_share": 0.3, "workers": 0}
    config = tiny(steps=4, data=data | {"tokenizer": "characters"}, checkpoints={"every": 2, "keep": 9})
    run = fit(config, tmp_path / "run")
    kept = (run / "characters.json").read_bytes()
    before = [row["loss"] for row in metrics.read(run) if row["kind"] == "eval"][-1]
    scored = evaluation.evaluate(run, "last")
    assert scored["loss"] == pytest.approx(before, rel=1e-5)
    for path in paths[:6]:
        path.with_suffix(".txt").write_text("\u03b1\u03b2\u03b3 \u03b4 QXZ" + path.stem)
    again = evaluation.evaluate(run, "last")
    assert again["loss"] != scored["loss"]
    exported = export(run, tmp_path / "clip")
    assert (exported / "characters.json").read_bytes() == kept
    back_to_step_2(run)
    assert cli.main(["resume", str(run), "--quiet", "--no-report"]) == 0
    assert (run / "characters.json").read_bytes() == kept
    assert load(run).captions.vocabulary == captions.load_from(exported).vocabulary

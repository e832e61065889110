"""fullstride report, evaluate, export: on one run, trained once."""

import json
import os
import re
import shutil
import sys

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from fullstride import cli
from fullstride.speech import recogniser
from fullstride.train import export
from fullstride.train.checkpoints.store import Store

from ..recipes.speech_corpus import tiny_run
from .commands import one_line, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert train(folder) == 0
    return folder


def test_evaluation_gives_the_scores_that_training_wrote(run, capsys):
    assert cli.main(["evaluate", str(run), "--checkpoint", "last", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    scores = json.loads(out)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "eval" and row["step"] == 4]
    assert scores == {"step": 4, "loss": pytest.approx(row["loss"]), "accuracy": row["accuracy"]}


def test_evaluation_is_one_line_for_people(run, capsys):
    assert cli.main(["evaluate", str(run), "--checkpoint", "2"]) == 0
    assert re.fullmatch(r"step 2: loss [\d.]+, accuracy [\d.]+\n", capsys.readouterr().out)


def test_report_says_where_it_is(run, capsys):
    assert cli.main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert "onfusion" in (run / "report.html").read_text()  # what only the task can show


def test_report_of_a_run_without_a_checkpoint_shows_no_predictions(run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints")
    assert cli.main(["report", str(copy)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{copy / 'report.html'}\n"
    assert one_line(err).startswith("fullstride: the report shows no predictions: ")


def test_report_without_matplotlib_names_the_extra(run, capsys, monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["report", str(run)]) == 2
    assert "pip install 'fullstride[report]'" in one_line(capsys.readouterr().err)


def test_training_without_matplotlib_is_no_failure(tmp_path, capsys, monkeypatch):
    for name in [*sys.modules, "matplotlib"]:
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)
    assert train(tmp_path / "run", report=True) == 0
    out, err = capsys.readouterr()
    assert "report" not in out
    assert one_line(err).startswith("fullstride: no report: ")


@pytest.mark.parametrize(("words", "step"), [([], None), (["--checkpoint", "last"], 4), (["--checkpoint", "2"], 2)])
def test_export_writes_the_very_weights(run, tmp_path, capsys, words, step):
    file = tmp_path / "model.safetensors"
    assert cli.main(["export", str(run), "--to", str(file), *words]) == 0
    store = Store(run / "checkpoints")
    snapshot = store.best() if step is None else store.load(run / "checkpoints" / f"step-{step:08d}")
    exported = load_file(file)
    assert exported.keys() == snapshot.tensors["model"].keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    for name, tensor in snapshot.tensors["model"].items():
        assert exported[name].dtype == torch.float32
        assert torch.equal(exported[name], tensor)
    assert one_line(capsys.readouterr().out).startswith(f"{file}: 4 tensors of step {snapshot.step}, ")
    assert list(tmp_path.iterdir()) == [file]


def test_split_weights_are_exported_in_fp32(tmp_path):
    train(tmp_path / "run", "--precision", "bf16")
    cli.main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "m.safetensors"), "--checkpoint", "last"])
    weight = load_file(tmp_path / "m.safetensors")["1.weight"]
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())  # more than the upper halves


def test_an_exported_file_carries_its_config_and_is_readable_for_others(run, tmp_path):
    file = tmp_path / "model.safetensors"
    cli.main(["export", str(run), "--to", str(file)])
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["config"] == (run / "config.yaml").read_text()
    (tmp_path / "other").touch()
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_export_replaces_a_file_only_if_told(run, tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    file.write_text("mine")
    assert cli.main(["export", str(run), "--to", str(file)]) == 2
    assert "--force" in one_line(capsys.readouterr().err)
    assert file.read_text() == "mine"
    assert cli.main(["export", str(run), "--to", str(file), "--force"]) == 0
    assert len(load_file(file)) == 4


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(run, tmp_path, monkeypatch, links):
    file = tmp_path / "model.safetensors"
    file.write_text("mine")
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    with pytest.raises(ValueError, match="--force"):
        export.export(run, file)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_system_without_links_will_do(run, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    export.export(run, tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_export_into_a_folder_that_cannot_be_written_is_one_line(run, tmp_path, capsys, monkeypatch):
    words = ["export", str(run), "--to", str(tmp_path / "model.safetensors")]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cli.main(words) == 2
    assert one_line(capsys.readouterr().err).endswith(f"the folder {tmp_path} is not writable; name another")


def test_export_that_safetensors_cannot_write_is_one_line(run, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    assert cli.main(["export", str(run), "--to", str(tmp_path / "model.safetensors")]) == 1
    assert one_line(capsys.readouterr().err).endswith("model.safetensors: I/O error: No space left on device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["evaluate", "RUN", "--checkpoint", "nest"], "--checkpoint: expected best, last or the number of a step"),
        (["export", "RUN", "--to", "model.pt"], "--to: expected a name that ends with .safetensors, got model.pt"),
        (["export", "RUN", "--to", "none/m.safetensors"], "cannot write none/m.safetensors: there is no folder none"),
        (["evaluate", "nowhere"], "there is no run folder nowhere: give one that `fullstride train` made"),
        (["evaluate", "RUN", "--checkpoint", "3"], ""),
    ],
)
def test_bad_input_is_one_line(run, words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(run) if word == "RUN" else word for word in words]) == 2
    assert line in one_line(capsys.readouterr().err)


def test_a_voice_is_assessed_in_full_on_request(capsys, monkeypatch):
    monkeypatch.setattr(recogniser, "missing", lambda: "expected the recogniser pocketsphinx, got none")
    voice = str(tiny_run())
    capsys.readouterr()
    assert cli.main(["evaluate", voice, "--full"]) == 0
    out, err = capsys.readouterr()
    first, names, *rows = out.splitlines()
    assert re.match(r"step 2: loss \S+, mel_l1 \S+, duration_ms \S+, pitch_correlation \S+$", first)
    assert names.split() == ["mel_l1", "mcd_db", "duration_ms", "pitch_correlation", "word_error_rate"]
    assert len(rows) == 5
    assert {len(row) for row in (names, *rows)} == {len(names)}
    assert rows[-1].split() == ["the", "voice", "itself", "0", "0", "-", "-", "-"]
    assert "no word error rates: expected the recogniser" in one_line(err)


def test_rows_of_an_assessment_are_in_the_json(capsys, monkeypatch):
    monkeypatch.setattr(recogniser, "missing", lambda: "expected the recogniser pocketsphinx, got none")
    voice = str(tiny_run())
    capsys.readouterr()
    assert cli.main(["evaluate", voice, "--full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["full"][2]["who"] == "this model"
    assert found["step"] == 2


def test_a_recipe_that_measures_no_more_says_so(run, capsys):
    assert cli.main(["evaluate", str(run), "--full"]) == 2
    assert "--full: expected a run whose recipe measures more" in one_line(capsys.readouterr().err)

"""`fullstride advise`, for real, on the smallest recipe."""

import json
import sys

import pytest

from fullstride import cli
from fullstride.report.section import Section
from fullstride.studies.advise import advice, page
from fullstride.studies.advise.devices import NONE

from ...cli.commands import one_line
from ..commands import refusal
from .tiny import WORDS


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study that is done: folder, what was said, what is in study.json."""
    folder = tmp_path_factory.mktemp("done") / "study"
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(map(str, words))))
        code = cli.main(["advise", "mlp", *WORDS, "--seconds", "0.05", "--to", str(folder)])
    assert code == 0
    return folder, "\n".join(said), json.loads((folder / "study.json").read_text())


def test_the_parts_are_rates_the_run_and_the_changes(study):
    _, said, content = study
    names = [name for name in content["parts"] if name != "change precision auto"]  # where bf16 is faster
    assert names == ["rates", "check", "change micro-batch 64, accumulate 1"]
    assert "[2/2] check: " in said
    assert content["command"] == "advise mlp"
    assert content["wish"]["config"]["micro_batch"] == 32


def test_the_outcome_has_prediction_error_bottleneck_and_changes(study):
    found = study[2]["outcome"]
    assert found["prediction"]["flops"] == 2 * 2 * 32 * (8 * 16 * 2 + 16 * 4 * 3)  # of two micro-batches
    assert found["prediction"]["seconds"] == pytest.approx(sum(x["seconds"] for x in found["prediction"]["lines"]))
    run = found["check"]
    assert run["peak_bytes"] > 0
    assert run["milliseconds"]["lowest"] <= run["milliseconds"]["median"] <= run["milliseconds"]["highest"]
    assert found["errors"]["time"] == pytest.approx(
        1e3 * found["prediction"]["seconds"] / run["milliseconds"]["median"] - 1
    )
    assert found["errors"]["memory"] == pytest.approx(found["memory"]["bytes"] / run["peak_bytes"] - 1)
    assert found["bottleneck"]["kind"] in found["prediction"]["by_kind"]
    (change,) = [entry for entry in found["changes"] if entry["options"] == "--micro-batch 64 --accumulate 1"]
    assert change["gain"] > 0
    assert change["keeps_step"]


def test_the_memory_is_that_of_a_dry_run_without_checkpoints(study):
    memory = study[2]["outcome"]["memory"]
    assert set(memory["parts"]) == {"process", "parameters", "optimizer", "gradients", "activations"}
    assert memory["parts"]["parameters"] == 4 * 212
    assert memory["bytes"] == sum(memory["parts"].values())


def test_what_is_said_is_the_advice_and_where_it_is(study):
    folder, said, content = study
    assert str(advice.Advice(content["outcome"])) in said
    assert "mlp: 212 parameters, 64 samples a step (2 x 32 samples), fp32" in said
    assert "the predicted time is " in said
    assert str(folder / "report.html") in said


def test_without_a_device_that_is_said(study):
    _, said, content = study
    if content["outcome"]["devices"] is None:
        assert f"devices     {NONE}" in said


def test_the_page_and_the_picture_are_there(study):
    folder, _, content = study
    assert sorted(path.name for path in folder.iterdir()) == ["picture.png", "report.html", "run.lock", "study.json"]
    text = (folder / "report.html").read_text()
    for heading in ("The step", "Roofline", "What to change", "Memory and energy", "Other devices", "Every pass"):
        assert f">{heading}</" in text
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert page.lead(content["outcome"]).endswith(".")


def test_the_page_shows_another_device_if_there_was_one(study):
    row = {"samples": 8, "cpu_seconds": 0.001, "device_seconds": 0.002}
    device = {
        "device": "cuda", "rows": [row], "trouble": "", "crossover": None, "launch_seconds": 1e-5,
        "synchronise_seconds": 1e-5, "to_device_gbs": 10.0, "from_device_gbs": 9.0, "compile_seconds": 30.0,
    }  # fmt: skip
    (section,) = [x for x in page.sections(study[2]["outcome"] | {"devices": device}) if x.title == "Other devices"]
    assert isinstance(section, Section)
    assert section.tables[0].rows == [("8", "1", "2")]
    assert "transfers 10.0 GB/s there and 9.0 back" in section.text


def test_the_same_command_again_measures_nothing(study, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder, _, content = study
    assert cli.main(["advise", "mlp", *WORDS, "--seconds", "0.05", "--to", str(folder)]) == 0
    assert "[1/" not in capsys.readouterr().out
    assert json.loads((folder / "study.json").read_text())["parts"] == content["parts"]


def test_without_a_run_there_is_a_prediction_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--no-check", "--carbon", "400", "--to", str(tmp_path / "study")]
    assert cli.main(["advise", "mlp", *WORDS, *words]) == 0
    said = capsys.readouterr().out
    assert "checked     not by a run: a prediction alone" in said
    assert "energy      not measured: no short run was made" in said
    assert "CO2" not in said
    found = json.loads((tmp_path / "study" / "study.json").read_text())["outcome"]
    assert found["check"] is None
    assert found["errors"] == {"time": None, "memory": None}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--seconds", "0"], "argument --seconds: expected"),
        (["--carbon", "-1"], "argument --carbon: expected grams of CO2 a kWh, 0 or more, got '-1'"),
    ],
)
def test_bad_options_are_one_line(words, line, capsys, tmp_path):
    assert line in refusal(capsys, tmp_path / "study", "advise", "mlp", *words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["mlp", "--micro-bach", "3"], "--micro-batch"),
        (["nonsense"], "unknown recipe 'nonsense'"),
        (["mlp", "--micro-batch", "0"], "micro_batch: expected 1 or more samples, got 0"),
    ],
)
def test_wishes_that_cannot_be_are_one_line(words, line, capsys, tmp_path):
    assert line in refusal(capsys, tmp_path / "study", "advise", *words)


def test_data_that_is_not_there_is_one_line(capsys, tmp_path):
    words = ["--data.name", "mnist", "--data.path", str(tmp_path / "nowhere"), "--to", str(tmp_path / "study")]
    assert cli.main(["advise", "mlp", *WORDS, *words]) == 2
    assert "nowhere" in one_line(capsys.readouterr().err)


def test_no_recipe_is_one_line(capsys, tmp_path):
    assert "expected a recipe or --config FILE" in refusal(capsys, tmp_path / "study", "advise")


def test_a_folder_with_other_wishes_is_refused(study, capsys):
    folder, _, _ = study
    assert cli.main(["advise", "mlp", *WORDS, "--seconds", "2", "--to", str(folder)]) == 2
    assert "holds a study with seconds 0.05, here it is 2" in one_line(capsys.readouterr().err)

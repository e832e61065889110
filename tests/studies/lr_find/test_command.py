"""`fullstride lr-find`, for real, on a small classifier."""

import json
import signal
import sys
from pathlib import Path

import pytest

from fullstride import cli, recipes
from fullstride.recipes import config_files
from fullstride.studies.lr_find import outcome
from fullstride.studies.lr_find.trial import with_rate

from ...cli.commands import one_line
from ...faults.processes import Commands, Pause, last_line
from ..commands import assert_stopped, refusal
from .tiny import WORDS, config

STEPS = 80
RANGE = ["--steps", str(STEPS), "--lowest", "1e-5", "--highest", "10"]


@pytest.fixture
def commands(tmp_path):
    started = Commands(tmp_path)
    yield started
    started.close()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study that is done, with its check: folder, what was printed at the end, what is in study.json."""
    folder = tmp_path_factory.mktemp("done") / "study"
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(map(str, words))))
        code = cli.main(["lr-find", "mlp", *WORDS, *RANGE, "--repeats", "2", "--check", "12", "--to", str(folder)])
    assert code == 0
    return folder, "\n".join(said), json.loads((folder / "study.json").read_text())


def lr_find(*words, recipe=("mlp",)):
    return cli.main(["lr-find", *recipe, *WORDS, *RANGE, *map(str, words)])


def parts_of(folder):
    return json.loads((folder / "study.json").read_text())["parts"]


def losses_of(folder):
    """Of every part, which no clock has a part in."""
    return {name: (part.get("rates"), part["losses"]) for name, part in parts_of(folder).items()}


# ---- what it leaves --------------------------------------------------------------------------------------------------


def test_the_parts_are_the_range_tests_and_the_trainings(study):
    _, _, content = study
    rate = content["outcome"]["rate"]
    assert [name.rpartition(",")[0] for name in content["parts"]] == [
        "range test", "range test", "check 12 steps, seed 0", "check 12 steps, seed 0"
    ]  # fmt: skip
    trained = list(content["parts"].values())[2:]
    assert [part["rate"] for part in trained] == [0.01, rate]
    assert all(part["loss"] > 0 and part["steps"] == list(range(1, 13)) for part in trained)


def test_the_outcome_has_the_rate_with_its_spread_and_its_rule(study):
    _, _, content = study
    found = content["outcome"]
    spread = found["suggestion"]
    assert spread["lowest"] <= spread["median"] <= spread["highest"]
    assert found["rate"] == float(f"{spread['median']:.1e}")
    assert 1e-4 < found["rate"] < 1
    assert found["own"] == 0.01
    assert found["rule"].startswith("the first rate at which the smoothed loss has done 95 %")
    assert found["precision"] == "fp32"
    assert [repeat["seed"] for repeat in found["repeats"]] == [0, 1]


def test_the_check_compares_the_losses_of_both_rates(study):
    _, _, content = study
    check, trained = content["outcome"]["check"], list(content["parts"].values())[2:]
    (pair,) = check["pairs"]
    assert (pair["own"], pair["found"]) == (trained[0]["loss"], trained[1]["loss"])
    assert check["change"]["median"] == pytest.approx(pair["found"] / pair["own"] - 1)
    assert check["verdict"]


def test_what_is_said_names_rate_spread_verdict_and_the_way_to_use_it(study):
    folder, said, content = study
    rate = content["outcome"]["rate"]
    assert "rate      suggestion " in said
    assert "; the recipe has 0.01" in said
    assert "\ncurve     the loss was lowest at " in said
    assert "\ncheck     12 steps, seed 0: validation loss " in said
    assert f"use       fullstride train --config {folder / 'found.yaml'}" in said
    assert config_files.read(folder / "found.yaml").optimizer.lr == rate


def test_the_page_and_the_picture_are_there_and_no_run_folder(study):
    folder, _, _ = study
    assert sorted(path.name for path in folder.iterdir()) == [
        "found.yaml", "picture.png", "report.html", "run.lock", "study.json"
    ]  # fmt: skip
    text = (folder / "report.html").read_text()
    for heading in ("Range test", "Check", "How to use it", "How it was taken"):
        assert f">{heading}</" in text
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_config_that_was_found_trains(study, tmp_path, capsys):
    folder, _, content = study
    run = tmp_path / "run"
    assert cli.main(["train", "--config", str(folder / "found.yaml"), "--steps", "2", "--run", str(run),
                     "--no-report", "--quiet"]) == 0  # fmt: skip
    assert config_files.read(run / "config.yaml").optimizer.lr == content["outcome"]["rate"]


def test_a_plain_recipe_is_used_by_one_option():
    plain = recipes.get("mlp")()
    found = {"rate": 0.00021}
    assert outcome.commands(found, plain, Path("f"))[0] == "fullstride train mlp --optimizer.lr 2.1e-4"
    assert outcome.commands(found, plain.replace(seed=1), Path("f")) == ["fullstride train --config f/found.yaml"]


# ---- more of it ------------------------------------------------------------------------------------------------------


def test_the_same_command_again_measures_nothing(study, capsys):
    folder, _, content = study
    assert lr_find("--repeats", 2, "--check", 12, "--to", folder) == 0
    assert "[1/" not in capsys.readouterr().out
    assert parts_of(folder) == content["parts"]


def test_repeats_and_a_check_can_be_asked_for_later(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # a picture takes longer than all the rest
    assert lr_find("--repeats", 1, "--to", tmp_path) == 0
    first = losses_of(tmp_path)
    assert lr_find("--repeats", 2, "--check", 3, "--check-seeds", 2, "--to", tmp_path) == 0
    names = list(parts_of(tmp_path))
    assert len(names) == 2 + 4
    assert losses_of(tmp_path)[names[0]] == first[names[0]]
    assert "1 of 2 parts were done before: going on" in capsys.readouterr().out


def test_a_range_without_a_fall_is_a_negative_result(tmp_path, capsys):
    words = ["--lowest", "1e-9", "--highest", "1e-8", "--repeats", "1", "--to", str(tmp_path)]
    assert cli.main(["lr-find", "mlp", *WORDS, "--steps", "20", *words]) == 1
    assert "no suggestion: the loss did not fall by more than its noise" in capsys.readouterr().out
    content = json.loads((tmp_path / "study.json").read_text())
    assert content["outcome"]["rate"] is None
    assert not (tmp_path / "found.yaml").exists()
    assert (tmp_path / "report.html").exists()


def test_freezing_is_left_out_and_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert lr_find("--freeze.enabled", "--repeats", 1, "--to", tmp_path) == 0
    assert "left out  freezing: the range test trains every layer" in capsys.readouterr().out


# ---- stopped ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The losses of every part of a study that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert lr_find("--repeats", 2, "--check", 6, "--to", folder) == 0
    return losses_of(folder)


WHOLE = ["lr-find", "mlp", *WORDS, *RANGE, "--repeats", "2", "--check", "6"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_in_a_range_test_it_goes_on_after_the_last_part(commands, tmp_path, whole, number):
    folder = tmp_path / "study"
    command = commands.start(*WHOLE, "--to", folder, change=Pause("loss", STEPS + 5)).until_paused()
    assert list(parts_of(folder)) == ["range test, seed 0"]
    assert_stopped(command, number, folder, num_parts=1)
    code, text = commands.start(*WHOLE, "--to", folder).wait()
    assert code == 0, text
    assert "1 of 2 parts were done before: going on" in text
    assert losses_of(folder) == whole


def test_stopped_in_a_training_it_goes_on_in_its_middle(commands, tmp_path, whole):
    folder = tmp_path / "study"
    num_before = sum(len(losses) for name, (_, losses) in whole.items() if name.startswith("range test"))
    command = commands.start(*WHOLE, "--to", folder, change=Pause("loss", num_before + 3)).until_paused()
    command.send(signal.SIGTERM)
    code, text = command.go_on()
    assert code == 143, text
    assert last_line(text).startswith("fullstride: stopped by SIGTERM; the training is kept in ")
    assert (folder / "run-6-steps-0.01-0" / "config.yaml").exists()
    code, text = commands.start(*WHOLE, "--to", folder).wait()
    assert code == 0, text
    assert losses_of(folder) == whole
    assert not list(folder.glob("run-*"))


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--lowest", "0"], "argument --lowest: expected a learning rate above 0, got '0'"),
        (["--steps", "x"], "argument --steps: expected a whole number from 1 on, got 'x'"),
        (["--check", "-1"], "argument --check: expected"),
        (["--repeats", "0"], "argument --repeats: expected a whole number from 1 on, got '0'"),
    ],
)
def test_bad_options_are_one_line(words, line, capsys, tmp_path):
    assert line in refusal(capsys, tmp_path / "study", "lr-find", "mlp", *words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--lowest", "1", "--highest", "2"], "--highest: expected 10 times the lowest rate (1) or more, got 2"),
        (["--steps", "5"], "--steps: expected 20 or more in a range test, got 5"),
        (["--check", "3", "--schedule.warmup", "5"], "schedule.warmup: expected fewer steps than the 3 of cosine"),
        (["--highset", "3"], "--highset"),
        (["--data.name", "mnist", "--data.path", "/nowhere"], "/nowhere"),
    ],
)  # fmt: skip
def test_wishes_that_cannot_be_are_one_line(words, line, capsys, tmp_path):
    assert line in refusal(capsys, tmp_path / "study", "lr-find", "mlp", *WORDS, *words)


def test_no_recipe_is_one_line(capsys, tmp_path):
    assert "expected a recipe or --config FILE" in refusal(capsys, tmp_path / "study", "lr-find")


def test_another_range_in_the_same_folder_is_refused(study, capsys):
    folder, _, _ = study
    assert cli.main(["lr-find", "mlp", *WORDS, *RANGE, "--highest", "20", "--to", str(folder)]) == 2
    line = one_line(capsys.readouterr().err)
    assert "holds a study with highest 10.0, here it is 20.0: --anew begins again" in line


def test_a_rate_that_fails_at_once_is_one_line_and_its_exit_code(capsys, tmp_path):
    words = ["--optimizer.name", "sgd", "--optimizer.lr", "1e20", "--clip", "None", "--lowest", "1e30"]
    assert cli.main(["lr-find", "mlp", *WORDS, *words, "--highest", "1e35", "--to", str(tmp_path)]) == 3
    assert "give a lower --lowest or --precision fp32" in one_line(capsys.readouterr().err)


def test_a_found_rate_below_the_floor_of_the_schedule_takes_it_along():
    lower = with_rate(config(schedule={"floor": 1e-3, "warmup": 0}), 1e-4)
    assert (lower.optimizer.lr, lower.schedule.floor) == (1e-4, 1e-4)

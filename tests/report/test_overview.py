"""Runs in a table: what became of each."""

import json
import os

import pytest

from fullstride.report import overview
from fullstride.run_folder import lock

from .runs import CONFIG, eval_row, event_row, make_folder, rows, train_row

START = event_row(0, "start")


def summary(tmp_path, rows, **changes):
    (found,), broken = overview.look([make_folder(tmp_path / "run", rows, **changes)])
    assert not broken
    return found


@pytest.mark.parametrize(
    ("events", "state", "why"),
    [
        ([START, event_row(40, "end", seconds=1.0, stopped="")], "finished", ""),
        ([START, event_row(20, "end", stopped="accuracy was not better")], "stopped early", "accuracy was not better"),
        ([START], "interrupted", ""),
        ([START, event_row(20, "interrupted", why="stopped by SIGTERM")], "interrupted", "stopped by SIGTERM"),
        ([START, event_row(20, "failed", why="10 steps in a row")], "failed", "10 steps in a row"),
        ([START, event_row(20, "failed", why="x"), event_row(10, "start", attempt=2)], "interrupted", ""),
        ([], "interrupted", ""),
    ],
)
def test_state_is_what_the_last_process_left(tmp_path, events, state, why):
    found = summary(tmp_path, [*events, train_row(20)])
    assert (found.state, found.why) == (state, why)


def test_a_run_whose_folder_is_locked_is_running(tmp_path):
    folder = make_folder(tmp_path / "run", [START])
    descriptor = lock.take(folder)
    try:
        assert overview.look([folder])[0][0].state == "running"
    finally:
        lock.release(descriptor)
    assert overview.look([folder])[0][0].state == "interrupted"


def test_best_speed_steps_and_time_of_a_run(tmp_path):
    found = summary(tmp_path, rows(), machine={"unit": "tokens"})
    assert (found.recipe, found.steps, found.planned_steps) == ("mlp-mnist", 40, 40)
    assert (found.metric, found.best, found.best_step) == ("accuracy", 0.973, 40)
    assert (found.per_second, found.unit) == (256.0, "tokens")
    assert found.seconds == 21.0


def test_steps_to_do_are_the_trainers_where_the_config_counts_in_another_unit(tmp_path):
    found = summary(tmp_path, [START], config=CONFIG.replace("steps: 40", "epochs: 3"), machine={"steps": 77})
    assert found.planned_steps == 77


def test_the_run_that_changed_last_stands_last(tmp_path):
    folders = [make_folder(tmp_path / name, [START]) for name in "abc"]
    for folder, changed in zip(folders, (300, 100, 200), strict=True):
        for file in ("metrics.jsonl", "config.yaml"):
            os.utime(folder / file, (changed, changed))
    assert [run.folder[-1] for run in overview.look(folders)[0]] == ["b", "c", "a"]


def test_broken_folders_are_named_and_the_others_shown(tmp_path):
    make_folder(tmp_path / "good", rows())
    make_folder(tmp_path / "bad", rows(), config="steps: [")
    make_folder(tmp_path / "odd", [train_row(5, attempt="x"), train_row(6)], config="- 1")
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "config.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "left" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    found, broken = overview.look(overview.find(tmp_path))
    assert [run.folder for run in found] == [str(tmp_path / "good")]
    assert [os.path.basename(entry.folder) for entry in broken] == ["bad", "bytes", "left", "odd"]
    text = overview.as_text(found, broken)
    assert "97.3 %" in text
    assert f"broken: {tmp_path / 'bad'}: its config.yaml is not YAML with fields in it" in text


def test_a_run_without_any_row_is_shown(tmp_path):
    text = overview.as_text([summary(tmp_path, [], machine=None)], [])
    assert "interrupted   0/40  -" in text


def test_text_says_why_runs_failed_and_how_to_go_on(tmp_path):
    found = summary(tmp_path, [START, event_row(20, "failed", why="weights are not finite")])
    text = overview.as_text([found], [])
    assert f"{found.folder} failed: weights are not finite" in text
    assert f"go on with: fullstride resume {found.folder}" in text


SHARED = {"hosts": ["alpha", "alpha", "beta"]}


def test_the_number_of_processes_is_a_column_where_a_run_has_several(tmp_path):
    folders = [make_folder(tmp_path / "one", rows()), make_folder(tmp_path / "three", rows(), machine=SHARED)]
    head, *lines = overview.as_text(*overview.look(folders)).splitlines()
    column = slice(head.index("processes"), head.index("processes") + len("processes"))
    assert sorted(line[column].strip() for line in lines) == ["1", "3"]
    assert "processes" not in overview.as_text(*overview.look(folders[:1])).splitlines()[0]


@pytest.mark.parametrize(("machine", "count"), [(None, 1), ({"hosts": None}, 1), (SHARED, 3)])
def test_processes_are_those_of_the_last_attempt(tmp_path, machine, count):
    assert summary(tmp_path, rows(), machine=machine).processes == count


def test_json_has_every_field(tmp_path):
    content = overview.as_json([summary(tmp_path, [*rows(), eval_row(40, float("nan"))])], [])
    assert json.loads(json.dumps(content, allow_nan=False))["runs"][0]["planned_steps"] == 40


def test_folder_that_is_a_run_is_that_run(tmp_path):
    folder = make_folder(tmp_path / "run")
    assert overview.find(folder) == [folder]
    assert overview.find(tmp_path) == [folder]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (86400 * 3, "3 d")]
)
def test_age_has_one_unit(seconds, text):
    assert overview.age(seconds) == text


def test_a_run_of_fit_goes_on_in_python(tmp_path):
    folder = make_folder(tmp_path / "run", [START], config=CONFIG.replace("mlp-mnist", "fit"))
    text = overview.as_text(*overview.look([folder]))
    assert text.endswith(f"go on with: fullstride.fit(..., run={str(folder)!r}, resume=True), in Python")

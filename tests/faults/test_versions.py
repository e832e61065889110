"""Runs whose config was written by another version."""

import signal

import pytest

from ..train.runs import assert_same_run, small
from .processes import Pause, last_line


@pytest.fixture
def stopped_run(commands, run):
    training = commands.train(run, small(), Pause("loss", 6)).until_paused()
    training.send(signal.SIGTERM)
    assert training.go_on()[0] == 143
    return run


def test_a_config_from_an_older_version_takes_todays_defaults_and_says_which(commands, stopped_run, whole):
    path = stopped_run / "config.yaml"
    text = path.read_text()
    for line in ("max_nonfinite: 10\n", "  patience: 0\n"):
        assert text.count(line) == 1
        text = text.replace(line, "")
    path.write_text(text)
    said = commands.finish(stopped_run)
    for field in ("max_nonfinite", "evaluation.patience"):
        assert f"{path} is older than the field {field}, which takes its default" in said
    assert path.read_text() == text
    assert_same_run(stopped_run, whole)


def test_a_config_from_a_newer_version_is_refused_and_nothing_is_touched(commands, stopped_run):
    path = stopped_run / "config.yaml"
    path.write_text(path.read_text() + "max_nonfinites: 3\n")
    before = {file: file.read_bytes() for file in stopped_run.rglob("*") if file.is_file()}
    code, said = commands.resume(stopped_run).wait()
    assert code == 2
    assert last_line(said) == f"fullstride: {path}: unknown field 'max_nonfinites'; did you mean 'max_nonfinite'?"
    assert {file: file.read_bytes() for file in stopped_run.rglob("*") if file.is_file()} == before

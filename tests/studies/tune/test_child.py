"""Trials are real processes that train; none of them may hold too much."""

import json
import os
import signal

import pytest

from fullstride.bench.step.process import SideDied
from fullstride.recipes import config_files
from fullstride.studies.tune.child import Children, Estimator, TooMuchMemory

from . import tiny


def start(children, folder, config=None, seconds=None):
    config = tiny.config(micro_batch=8, accumulate=2) if config is None else config
    wish = {"config": config_files.to_yaml(config), "run": str(folder), "seconds": seconds}
    return children.start("trial", wish)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """One that trains for a second in all."""
    folder = tmp_path_factory.mktemp("trial") / "run"
    with Children(None) as children:
        yield start(children, folder, seconds=1.0), folder


def test_a_trial_says_what_it_is(trial):
    facts = trial[0].facts
    assert facts == {"unit": "samples", "steps": 40, "threads": 1, "precision": "fp32", "overlaps": False}


def test_a_trial_answers_the_rates_of_its_steps(trial):
    answer = trial[0].ask({"train": 0.0, "settle": 2, "least": 20})
    assert answer["steps"] == 20
    assert answer["units"] == 20 * 16
    assert len(answer["rates"]) == 8
    assert min(answer["rates"]) <= answer["units"] / answer["seconds"] <= max(answer["rates"])
    assert answer["peak"] > 1 << 20


def test_a_trial_trains_at_least_as_long_as_it_is_told(trial):
    assert trial[0].ask({"train": 0.05})["seconds"] >= 0.05


def test_training_lowers_the_validation_loss(trial):
    before = trial[0].ask({"evaluate": 1})["loss"]
    trial[0].ask({"train": 0.3})
    assert trial[0].ask({"evaluate": 1})["loss"] < before


def test_nothing_is_computed_in_the_pool_between_operations(trial):
    """So its number of threads is no setting: torch would not take another one if anything ever had been."""
    trial[0].ask({"train": 0.01})
    assert trial[0].ask({"inter_op": 1}) == {"started": False}


def test_a_trial_saves_nothing(trial):
    assert list((trial[1] / "checkpoints").iterdir()) == []
    rows = [json.loads(line) for line in (trial[1] / "metrics.jsonl").read_text().splitlines()]
    assert not [row for row in rows if row["kind"] == "eval"]


def test_the_learning_rate_is_at_its_end_when_the_time_is(trial, tmp_path):
    """However many steps that were."""
    schedule = {"warmup": 0, "floor": 1e-3}
    config = tiny.config(micro_batch=8, optimizer={"lr": 0.5}, schedule=schedule, logging={"every": 1})
    with Children(None) as children:
        child = start(children, tmp_path / "run", config, seconds=0.2)
        child.ask({"train": 0.1})
        child.ask({"train": 0.2})
        child.ask({"train": 0.0})  # one step more
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [row["lr"] for row in rows if row["kind"] == "train"]
    assert rates[0] == 0.5
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(1e-3, rel=1e-3)


def test_a_trial_that_holds_too_much_is_ended(tmp_path):
    with Children(60 << 20) as children:  # torch alone is more
        with pytest.raises(TooMuchMemory, match=r"too much memory: held [\d.]+ MiB, 60 MiB may be used"):
            start(children, tmp_path / "run")
        assert not children._living


def test_those_at_rest_are_ended_first(trial, tmp_path):
    """The one that was asked longest ago makes room for the one at work."""
    with Children(None) as children:
        resting = start(children, tmp_path / "a")
        children.limit = int(1.5 * resting.held())
        working = start(children, tmp_path / "b")
        assert not resting.is_open
        assert working.ask({"train": 0.0})["steps"] == 1


def test_bad_input_is_one_line(tmp_path):
    bad = tiny.config(micro_batch=8, evaluation={"metric": "bleu"})
    with Children(None) as children, pytest.raises(ValueError, match=r"^evaluation.metric: expected one of loss, acc"):
        start(children, tmp_path / "run", bad)


def test_a_trial_that_dies_is_told_by_its_signal(tmp_path):
    with Children(None) as children:
        child = start(children, tmp_path / "run")
        os.kill(child._process.pid, signal.SIGSEGV)
        with pytest.raises(SideDied, match="its process was ended by SIGSEGV"):
            child.ask({"train": 1.0})
        assert not child.is_open


def test_a_trial_that_died_before_it_is_asked_is_closed(tmp_path):
    with Children(None) as children:
        child = start(children, tmp_path / "run")
        os.kill(child._process.pid, signal.SIGKILL)
        child._process.wait()
        with pytest.raises(SideDied, match="its process was ended by SIGKILL"):
            child.ask({"train": 1.0})
        assert not child.is_open
        assert not children._living


def test_a_larger_micro_batch_is_estimated_to_hold_more():
    with Children(None) as children:
        estimator = Estimator(children, tiny.config(micro_batch=8, model={"hidden": (512,)}))
        assert estimator.facts["micro_batch_matters"] is None
        assert estimator.facts["precision"] == "fp32"
        assert estimator.bytes_of(64, 1, "fp32") + (8 << 20) < estimator.bytes_of(8192, 1, "fp32")

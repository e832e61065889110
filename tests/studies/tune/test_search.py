"""Hyper-parameters by validation loss: real trials of a tiny model, and what optuna knows of them afterwards."""

import copy
import dataclasses
import math

import pytest

from fullstride.studies.tune import plan, search, settings
from fullstride.studies.tune.child import Children
from fullstride.studies.tune.plan import Session
from fullstride.studies.tune.search import Search
from fullstride.studies.tune.settings import Ground
from fullstride.studies.tune.speed import Found as Speed

from . import tiny

CONFIG = tiny.config(micro_batch=8, optimizer={"lr": 1e-4})
OWN = settings.of(CONFIG)
SPEED = Speed(Ground(1, 1, "fp32", {}, None), OWN, OWN, "samples", 40, 1.0, 0.002, False)
NAMES = ("lr", "batch")
HOUR = 3600.0


@pytest.fixture(autouse=True)
def three(monkeypatch):
    monkeypatch.setattr(search, "MOST_TRIALS", 3)
    monkeypatch.setattr(search, "_RANDOM", 1)  # the third trial is drawn from what the first two have shown


@pytest.fixture
def no_process(monkeypatch):
    def start(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr(Children, "start", start)


def searched(folder, parts, config=CONFIG, seconds=HOUR):
    """With these parts done before: what was found, and the parts there are now. No final."""
    with tiny.opened(folder) as study, Children(None) as children, pytest.MonkeyPatch.context() as patch:
        for name, part in parts.items():
            study.record(name, part)
        patch.setattr(Search, "_judge", lambda self: None)
        found = Search(Session(study, seconds), config, NAMES, SPEED, children, folder / "runs").run()
        return found, dict(study.parts)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MOST_TRIALS", 3)
        patch.setattr(search, "_RANDOM", 1)
        return searched(tmp_path_factory.mktemp("search"), {})


def test_the_first_trial_has_the_own_values(first):
    trial = first[0].trials[0]
    assert trial["values"] == {"lr": 1e-4, "batch": 8}
    assert trial["parameters"] == {"lr": 1e-4, "batch": 0}
    assert trial["state"] == "complete"


def test_every_trial_is_evaluated_at_its_rungs(first):
    found = first[0]
    assert found.seconds == pytest.approx(0.08)  # no longer than the whole training
    assert len(found.trials) == 3
    for trial in found.trials:
        seconds, losses = zip(*trial["points"], strict=True)
        assert all(x >= y for x, y in zip(seconds, (0.02, 0.04, 0.08), strict=False))
        assert all(0 < loss < 10 for loss in losses)
        assert len(losses) == 3 or trial["state"] == "pruned"
    assert len({trial["parameters"]["lr"] for trial in found.trials}) == 3


def test_a_continued_search_draws_what_the_uninterrupted_one_did(first, tmp_path):
    found, parts = first
    parts = {name: part for name, part in parts.items() if name != "trial 2"}
    again, _ = searched(tmp_path, copy.deepcopy(parts))
    assert again.trials[:2] == found.trials[:2]
    assert again.trials[2]["parameters"] == found.trials[2]["parameters"]


def test_what_is_drawn_depends_on_the_losses_of_earlier_trials(first, tmp_path, monkeypatch):
    """As given back to optuna: with the losses of the first two exchanged the third is another."""
    made_up = {"state": "failed", "why": "made up", "points": [], "steps": 0}
    monkeypatch.setattr(Search, "_train", lambda *_: made_up)
    drawn = []
    for losses in ((1.0, 2.0), (2.0, 1.0)):
        parts = {name: part for name, part in copy.deepcopy(first[1]).items() if name != "trial 2"}
        for number, loss in enumerate(losses):
            points = [[0.02, loss], [0.04, loss], [0.08, loss]]
            parts[f"trial {number}"] |= {"state": "complete", "points": points, "optuna": {}}
        drawn.append(searched(tmp_path / str(losses[0]), parts)[0].trials[2]["parameters"])
    assert drawn[0] != drawn[1]


def test_a_finished_search_measures_nothing(first, tmp_path, no_process):
    again, _ = searched(tmp_path, copy.deepcopy(first[1]))
    assert again.trials == first[0].trials


def test_optuna_learns_from_trials_that_failed(first, tmp_path, no_process, monkeypatch):
    """As worse than all others: its own state for failures would be forgotten."""
    import optuna

    made = [optuna.create_study()]
    monkeypatch.setattr(optuna, "create_study", lambda **_: made[0])
    parts = copy.deepcopy(first[1])
    parts["trial 1"] |= {"state": "failed", "why": "diverged", "points": [[0.02, None]], "optuna": {}}
    parts["trial 2"] |= {"state": "failed", "why": "too much memory", "points": [], "optuna": {}}
    searched(tmp_path, parts)
    assert [each.state.name for each in made[0].trials] == ["COMPLETE", "PRUNED", "PRUNED"]
    assert made[0].trials[1].intermediate_values == {1: math.inf}
    made[0].sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=1)
    assert made[0].ask(made[0].trials[0].distributions).params["lr"] > 0


def test_a_trial_that_diverges_has_failed_and_says_so(tmp_path):
    config = CONFIG.replace(optimizer={"name": "sgd", "lr": 1e30}, clip=None, max_nonfinite=1)
    with tiny.opened(tmp_path) as study, Children(None) as children:
        one = Search(Session(study, HOUR), config, NAMES, SPEED, children, tmp_path / "runs")
        one.found.seconds = 5.0
        part = one._train(config, lambda step, loss: True)
    assert part["state"] == "failed"
    assert "not finite" in part["why"]


def test_a_trial_that_does_not_answer_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_FEWEST_SECONDS", 0.0)
    monkeypatch.setattr(plan, "_LATE", 0.0)  # no start is as fast
    with tiny.opened(tmp_path) as study, Children(None) as children:
        one = Search(Session(study, HOUR), CONFIG, NAMES, SPEED, children, tmp_path / "runs")
        part = one._train(CONFIG, lambda step, loss: True)
        assert not children._living
        found = one.run()
    assert (part["state"], part["why"], part["points"]) == ("failed", "no answer within 0 s", [])
    assert found.stopped == "its evaluation cannot be timed: no answer within 0 s"


def test_a_long_trial_tells_its_rungs(tmp_path, monkeypatch):
    said: list[str] = []
    with tiny.opened(tmp_path) as study, Children(None) as children:
        study.say = said.append
        one = Search(Session(study, HOUR), CONFIG, NAMES, SPEED, children, tmp_path / "runs")
        one.found.seconds = 20.0
        for step in (1, 2, 4):
            one._say_rung(step, 5.0 * step, 1.5)
        one.found.seconds = 2.0
        one._say_rung(1, 0.5, 1.5)
    assert said == ["  after 5 of 20 s: loss 1.5", "  after 10 of 20 s: loss 1.5"]


def test_the_whole_training_is_as_long_as_with_the_settings_that_were_taken(tmp_path, no_process):
    faster = dataclasses.replace(SPEED, best=OWN._replace(threads=2), rounds=[{"ratio": 2.0}])
    with tiny.opened(tmp_path) as study, Children(None) as children:
        one = Search(Session(study, HOUR), CONFIG, NAMES, faster, children, tmp_path)
        assert one._plan(0.0)[0] == pytest.approx(0.04)


@pytest.mark.parametrize("ratio", [2.0, 0.9])
def test_trials_have_as_many_processes_as_were_taken(ratio, tmp_path, monkeypatch):
    wishes = []
    monkeypatch.setattr(Children, "start", lambda self, program, wish, seconds=None: wishes.append(wish))
    several = dataclasses.replace(SPEED, best=OWN._replace(processes=2), rounds=[{"ratio": ratio}])
    with tiny.opened(tmp_path) as study, Children(None) as children:
        Search(Session(study, HOUR), CONFIG, NAMES, several, children, tmp_path)._start(CONFIG, 1.0)
    assert [wish["processes"] for wish in wishes] == [2 if ratio > 1 else 1]


def test_without_time_there_is_no_search_and_a_line(tmp_path, no_process):
    found, _ = searched(tmp_path, {"evaluation": {"seconds": 0.1, "took": 0.0}}, seconds=5.0)
    assert found.stopped == "no time for it; --minutes 1 might do"
    assert found.trials == []


@pytest.mark.parametrize(
    ("losses", "is_better"),
    [([2.0, 1.0, 2.0, 1.5], True), ([2.0, 1.0, 2.0, 2.1], False), ([None, 1.0, 2.0, 1.5], True),
     ([2.0, None, 2.0, 1.0], False)],
)  # fmt: skip
def test_the_best_trial_must_win_with_both_seeds(losses, is_better, tmp_path, no_process):
    """losses: default and best with the first seed, then with the second."""
    with tiny.opened(tmp_path) as study, Children(None) as children:
        names = [f"search final, seed {seed}: {who}" for seed in (1, 2) for who in ("default", "best")]
        for name, loss in zip(names, losses, strict=True):
            study.record(name, {"points": [(0.1, 9.0), (0.2, loss)], "took": 1.0})
        one = Search(Session(study, HOUR), CONFIG, NAMES, SPEED, children, tmp_path)
        one.found.trials = [trial(0, 1.0), trial(1, 0.5, "pruned"), trial(2, 0.8), trial(-1, 0.9)]
        one._judge()
    assert one.found.best == 2
    assert one.found.is_better == is_better
    assert one.config_of(2) == CONFIG.replace(micro_batch=8, accumulate=4, steps=10)


def test_own_values_that_are_best_need_no_final(tmp_path, no_process):
    with tiny.opened(tmp_path) as study, Children(None) as children:
        one = Search(Session(study, HOUR), CONFIG, NAMES, SPEED, children, tmp_path)
        one.found.trials = [trial(0, 0.7), trial(1, 0.8)]
        one._judge()
        assert study.parts == {}
    assert not one.found.is_better


def trial(batch, loss, state="complete"):
    return {"parameters": {"batch": batch}, "state": state, "points": [(0.1, loss)]}


def test_a_larger_micro_batch_is_estimated_before_it_is_tried(tmp_path):
    """Where the micro-batch decides what is learnt, a larger batch is a larger one of these."""
    with tiny.opened(tmp_path) as study, Children(4 << 30) as children:
        one = Search(Session(study, HOUR), CONFIG, NAMES, SPEED, children, tmp_path)
        one._estimator.bytes_of(8, 1, "fp32")
        children.limit = children._living[0].held() + (1 << 20)
        part = one._train(CONFIG.replace(micro_batch=4_000_000), lambda step, loss: True)
    assert part["state"] == "failed"
    assert part["why"].startswith("too much memory: ")
    assert part["points"] == []

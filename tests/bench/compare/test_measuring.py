"""The parts of a comparison: rounds fill the time, the best is searched once, a stop is continued."""

import pytest

from fullstride.bench import study as studies
from fullstride.bench.compare import measuring
from fullstride.bench.compare import outcome as compare_outcome
from fullstride.bench.compare import sides as compare_sides
from fullstride.bench.step import benchmark as step
from fullstride.bench.step import stock as step_stock
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT
from fullstride.bench.step.process import SideFailed
from fullstride.bench.step.stock import AS_IT_COMES

from . import tiny
from .tiny import CONFIG, FACTS, OURS, PEAKS, Scripted

SECONDS = {"fullstride": 0.25, STOCK_DEFAULT: 0.75, STOCK_BEST: 0.5}  # of a step


@pytest.fixture
def started(monkeypatch):
    """Scripted sides in place of processes, all that were ever started."""
    found: list[Scripted] = []

    def make(name, config, limit=None):
        seconds = next(value for start, value in SECONDS.items() if name.startswith(start))
        found.append(Scripted(name, config, limit, seconds))
        return found[-1]

    monkeypatch.setattr(compare_sides, "Side", make)
    monkeypatch.setattr(measuring, "Side", make)
    monkeypatch.setattr(step, "measure_peaks", lambda: PEAKS)
    return found


def measured(folder, seconds=8.0, best=False, say=lambda text: None):
    with studies.opened(folder, "compare tiny", {}, {}, say=say) as study:
        measuring.measure(study, CONFIG, seconds, best)
        return study.parts


@pytest.mark.parametrize(
    ("first", "num_bytes", "seconds", "steps"),
    [
        ((0.25, 0.75), 1, 60.0, 4),  # a turn of the faster one is a second
        ((0.25, 0.75), 1, 8.0, 1),  # seven rounds have to fit
        ((2.0, 6.0), 1, 10.0, 1),  # not one round would fit
        ((0.001, 0.003), 1 << 20, 2.56, 64),  # 64 MiB of data in a turn
        ((0.01, 0.03), 1, 3600.0, 900),  # a hundred rounds are enough
    ],
)
def test_a_turn_is_long_enough_to_time_and_short_enough_for_rounds(first, num_bytes, seconds, steps):
    assert measuring._steps_of_turn(first, num_bytes, seconds * (1 + 1e-9)) == steps


@pytest.mark.parametrize(("seconds", "rounds"), [(8.0, 8), (0.1, 3), (3.9, 3), (60.0, 15)])
def test_rounds_fill_the_time_and_are_three_at_least(seconds, rounds, started, tmp_path):
    turns = compare_outcome.turns_of(measured(tmp_path, seconds))
    assert turns.rounds == rounds
    assert turns.seconds == rounds * turns.steps * 1.0
    assert {len(side.losses) for side in started} == {turns.warm_up + 1 + rounds * turns.steps}


def test_what_is_left_is_said_after_each_round(started, tmp_path):
    said: list[str] = []
    measured(tmp_path, 4.0, say=said.append)
    assert [text.split(" ms")[0] for text in said if text.startswith("[")] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert said[-2].endswith(f"ms a step: {OURS} 250, {STOCK_DEFAULT} 750; about 0 s left")
    assert said[-1].endswith(f"ms a step: {OURS} 250, {STOCK_DEFAULT} 750")


def stop_after(text):
    """A `say` that stops the study as Ctrl-C does, once this was said."""

    def say(said):
        if said.startswith(text):
            raise KeyboardInterrupt

    return say


def test_a_stop_is_continued_with_the_rounds_that_are_left(started, tmp_path):
    whole = measured(tmp_path / "whole", 8.0)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path / "stopped", 8.0, say=stop_after("[3/"))
    num_started = len(started)
    parts = measured(tmp_path / "stopped", 8.0)
    assert [name for name in parts if name != "continued 1"] == list(whole)
    assert list(parts).index("continued 1") == list(parts).index("round 3") + 1
    continued = parts["continued 1"]
    assert continued.pop("load") >= 0
    same = {OURS: 0.0, STOCK_DEFAULT: 0.0}
    assert continued == {"steps": 3 + 3 * 1, "differences": same, "others": [], "failed": {}}
    for name in (OURS, STOCK_DEFAULT):
        expected, found = compare_outcome.steps_of(whole, name), compare_outcome.steps_of(parts, name)
        assert (found.losses, found.clock) == (expected.losses, expected.clock)
    assert [side.name for side in started[num_started:]] == [OURS, STOCK_DEFAULT]
    assert {len(side.losses) for side in started[num_started:]} == {len(found.losses)}


def test_processes_that_are_others_after_a_stop_are_told(started, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, say=stop_after("[1/"))
    monkeypatch.setattr(tiny, "FACTS", FACTS | {"threads": 1})
    others = measured(tmp_path)["continued 1"]["others"]
    assert others == [f"{name}: threads 2 before, 1 now" for name in (OURS, STOCK_DEFAULT)]


def test_losses_that_are_others_after_a_stop_are_told(started, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, say=stop_after("[1/"))
    monkeypatch.setattr(Scripted, "__init__", _with_another_past(Scripted.__init__))
    differences = measured(tmp_path)["continued 1"]["differences"]
    assert differences == {OURS: pytest.approx(0.5), STOCK_DEFAULT: pytest.approx(0.5)}


def _with_another_past(init):
    """Losses of 1/2, 1/3 ... in place of 1/1, 1/2 ..."""

    def run(self, steps, limit=None):
        answer = Scripted.run(self, steps, limit)
        answer["losses"] = [loss / (1 + loss) for loss in answer["losses"]]
        self.losses[-steps:] = answer["losses"]
        return answer

    def other(self, *arguments, **options):
        init(self, *arguments, **options)
        self.run = run.__get__(self)

    return other


def test_a_study_stopped_after_its_last_round_starts_no_process(started, tmp_path):
    measured(tmp_path, 4.0)
    num_started = len(started)
    measured(tmp_path, 4.0)
    assert len(started) == num_started


@pytest.fixture
def found_best(monkeypatch):
    """What find_best() finds in place of trials: settings, or None for stock as it comes. And who searched."""
    wish: dict = {"settings": {"autocast": False, "fused": True, "compile": False}, "searches": []}

    def find_best(case, default, quick, stack, say, known, keep):
        wish["searches"].append(default)
        assert not quick
        name = next((name for name, found in step_stock.COMBINATIONS.items() if found == wish["settings"]), AS_IT_COMES)
        keep(name, {"outcome": "500 ms", "seconds": 0.5 if default else None, "bad_bf16": ""})
        return None, [f"{name}: 500 ms"]

    monkeypatch.setattr(step_stock, "find_best", find_best)
    return wish


def test_stock_at_its_best_is_a_side_with_the_settings_that_were_found(started, found_best, tmp_path):
    parts = measured(tmp_path, best=True)
    name = f"{STOCK_BEST} (fused)"
    assert parts["best"] == {"name": name, "settings": found_best["settings"], "trials": ["fused: 500 ms"]}
    assert parts["trial of fused"] == {"outcome": "500 ms", "seconds": 0.5, "bad_bf16": ""}
    assert [side.name for side in started] == [STOCK_DEFAULT, OURS, STOCK_DEFAULT, name]
    assert started[0].closed  # that of the trials
    assert started[-1].config["fused"] is True
    result = compare_outcome.result_of(measuring.case_of(CONFIG), parts, True, {})
    ratios = {ratio.peer: (ratio.peer_side, ratio.ratio.median) for ratio in result.ratios}
    assert ratios == {STOCK_DEFAULT: (STOCK_DEFAULT, 3.0), STOCK_BEST: (name, 2.0)}


def test_stock_that_is_best_as_it_comes_is_one_side(started, found_best, tmp_path):
    found_best["settings"] = None
    parts = measured(tmp_path, best=True)
    assert [side.name for side in started[1:]] == [OURS, STOCK_DEFAULT]
    result = compare_outcome.result_of(measuring.case_of(CONFIG), parts, True, {})
    assert {ratio.peer: ratio.peer_side for ratio in result.ratios} == dict.fromkeys(
        (STOCK_DEFAULT, STOCK_BEST), STOCK_DEFAULT
    )


def test_the_best_settings_are_not_searched_again_after_a_stop(started, found_best, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, best=True, say=stop_after("[1/"))
    parts = measured(tmp_path, best=True)
    assert len(found_best["searches"]) == 1
    assert f"{STOCK_BEST} (fused)" in parts["round 2"]["answers"]


def test_a_stop_among_the_trials_loses_none_that_is_done(started, tmp_path, monkeypatch):
    seconds = {"fused": 0.6, "torch.compile": 0.4}

    def make(name, config, limit=None):
        tried = name.removeprefix(f"{STOCK_BEST} (").removesuffix(")")
        started.append(Scripted(name, config, limit, seconds.get(tried, 0.8)))
        return started[-1]

    monkeypatch.setattr(step_stock, "Side", make)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, best=True, say=stop_after("  stock PyTorch torch.compile"))
    assert all(side.closed for side in started)
    first = [side.name for side in started]
    before, started[:] = len(first), []
    parts = measured(tmp_path, best=True)
    assert first[0] == STOCK_DEFAULT
    assert [side.name for side in started][: 8 - before] == [
        step_stock.side_name(name) for name in list(step_stock.COMBINATIONS)[before:]
    ]
    assert parts["trial of torch.compile"]["seconds"] == 0.4
    assert [line.split(": ")[0] for line in parts["best"]["trials"]] == list(step_stock.COMBINATIONS)
    assert parts["best"]["name"] == f"{STOCK_BEST} (torch.compile)"
    assert parts["best"]["settings"] == {"autocast": False, "fused": False, "compile": True}


def test_warm_up_is_longer_where_something_is_compiled(started, found_best, tmp_path):
    found_best["settings"] = {"autocast": False, "fused": True, "compile": True}
    assert measured(tmp_path / "compiled", best=True)["start"]["warm_up"] == step_stock.MOST_TRIED
    assert measured(tmp_path / "eager")["start"]["warm_up"] == step_stock.WARM_UP


def test_stock_that_cannot_even_start_leaves_ours(started, found_best, tmp_path, monkeypatch):
    def refuse(name, config, limit=None):
        if not config.get("fullstride"):
            raise SideFailed(f"{name}: out of memory")
        return Scripted(name, config, limit, 0.25)

    monkeypatch.setattr(compare_sides, "Side", refuse)
    monkeypatch.setattr(measuring, "Side", refuse)
    found_best["settings"] = None
    parts = measured(tmp_path, 2.0, best=True)
    assert found_best["searches"] == [None]
    assert measuring.failed_in(parts) == {STOCK_DEFAULT: "out of memory"}
    assert compare_outcome.names_of(parts) == [OURS]

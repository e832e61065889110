"""Sides that die or hang: stock PyTorch's is named and left behind, and its process is gone; ours ends the command."""

import contextlib
import json
import os
import signal

import pytest

from fullstride.bench.compare import benchmark as compare
from fullstride.bench.compare import sides as compare_sides
from fullstride.bench.compare.sides import Sides
from fullstride.bench.step import benchmark as step
from fullstride.bench.step.cases import STOCK_DEFAULT, Case
from fullstride.bench.step.process import Side, SideDied, SideFailed

from .tiny import CONFIG, FACTS, OURS, PEAKS, Scripted


@pytest.fixture
def started(monkeypatch):
    """Every real side by name."""
    found: dict[str, Side] = {}

    class Known(Side):
        def __init__(self, name, *arguments, **options):
            super().__init__(name, *arguments, **options)
            found[name] = self

    monkeypatch.setattr(compare_sides, "Side", Known)
    monkeypatch.setattr(step, "measure_peaks", lambda: PEAKS)
    return found


def after_the_first_round(do):
    """As the `say` of a comparison."""

    def say(text):
        if text.startswith("[1/"):
            do()

    return say


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGSTOP, "no answer within 2 s"), (signal.SIGKILL, "its process ended, killed by signal 9")],
    ids=["hangs", "dies"],
)
def test_stock_that_is_lost_on_the_way_is_named_and_ours_goes_on(number, why, started, tmp_path, monkeypatch):
    def hit():
        os.kill(started[STOCK_DEFAULT].pid, number)
        monkeypatch.setattr(compare_sides, "LEAST", 2.0)
        monkeypatch.setattr(compare_sides, "TIMES", 0.0)

    found = compare.run(CONFIG, 0.05, to=tmp_path, say=after_the_first_round(hit))
    assert [side["name"] for side in found["sides"]] == [OURS]
    assert found["turns"]["rounds"] >= 3
    assert found["failed"][STOCK_DEFAULT].startswith(why)
    assert found["failed"][STOCK_DEFAULT].endswith(" steps)")
    assert found["ratios"] == []
    assert any(note.startswith(f"{STOCK_DEFAULT}: {why}") for note in found["notes"])
    with pytest.raises(ProcessLookupError):
        os.kill(started[STOCK_DEFAULT].pid, 0)


def test_ours_that_dies_is_the_end_and_what_was_measured_is_kept(started, tmp_path):
    def kill():
        os.kill(started[OURS].pid, signal.SIGKILL)

    with pytest.raises(SideFailed, match=f"{OURS}: its process ended, killed by signal 9"):
        compare.run(CONFIG, 0.05, to=tmp_path, say=after_the_first_round(kill))
    for side in started.values():
        with pytest.raises(ProcessLookupError):
            os.kill(side.pid, 0)
    parts = json.loads((tmp_path / "study.json").read_text())["parts"]
    assert list(parts) == ["start", "round 1"]


def sides_of(monkeypatch, **kinds):
    """Scripted ones in place of processes."""
    monkeypatch.setattr(compare_sides, "Side", lambda name, *rest, **more: kinds[name.split()[0]](name, *rest, **more))
    stack = contextlib.ExitStack()
    return Sides(Case("tiny", precisions=("fp32",)), stack, {})


WANTED = {OURS: {"fullstride": "fp32"}, STOCK_DEFAULT: {}}


def test_stock_that_does_not_stand_is_named_and_not_asked(monkeypatch):
    def dying(name, *rest, **more):
        raise SideDied(f"{name}: illegal instruction on this CPU")

    sides = sides_of(monkeypatch, fullstride=Scripted, stock=dying)
    sides.start(WANTED)
    assert sides.failed == {STOCK_DEFAULT: "illegal instruction on this CPU"}
    assert list(sides.turn(2)) == [OURS]


def test_ours_that_does_not_stand_is_an_error(monkeypatch):
    def dying(name, *rest, **more):
        raise SideFailed(f"{name}: ValueError: no such precision")

    sides = sides_of(monkeypatch, fullstride=dying, stock=Scripted)
    with pytest.raises(SideFailed, match="no such precision"):
        sides.start(WANTED)


def test_who_failed_before_is_not_started_again(monkeypatch):
    sides = sides_of(monkeypatch, fullstride=Scripted, stock=pytest.fail)
    sides.failed[STOCK_DEFAULT] = "died"
    sides.start(WANTED)
    assert [side.name for side in sides.running] == [OURS]


@pytest.mark.parametrize(
    ("gflop", "settings", "first"),
    [(1.0, {}, 60.0), (500.0, {}, 1000.0), (None, {}, 3600.0), (500.0, {"compile": True}, 1900.0)],
    ids=["small", "large", "uncounted", "compiled"],
)
def test_the_time_for_an_answer_follows_from_what_is_known(gflop, settings, first, monkeypatch):
    sides = sides_of(monkeypatch, stock=Scripted)
    sides.start({STOCK_DEFAULT: settings})
    [side] = sides.running
    monkeypatch.setitem(FACTS, "gflop", gflop)
    side.seconds = 2.0
    sides.turn(2)
    sides.turn(10)
    more = 900.0 if settings else 0.0
    assert side.limits == [compare_sides.STANDING, first, more + 20 * 10 * 2.0]


def test_losses_that_are_no_numbers_are_none_in_the_answer(monkeypatch):
    class Diverged(Scripted):
        def run(self, steps, limit=None):
            return super().run(steps, limit) | {"losses": [float("nan")] * steps}

    sides = sides_of(monkeypatch, stock=Diverged)
    sides.start({STOCK_DEFAULT: {}})
    assert sides.turn(2)[STOCK_DEFAULT]["losses"] == [None, None]

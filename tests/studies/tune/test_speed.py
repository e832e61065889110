"""Successive halving among speeds that are made up here."""

import pytest

from fullstride.bench.step.process import SideFailed, SideLate
from fullstride.studies.tune import plan, settings
from fullstride.studies.tune.child import Children, TooMuchMemory
from fullstride.studies.tune.plan import Session
from fullstride.studies.tune.settings import Ground
from fullstride.studies.tune.speed import Found, Speed

from . import tiny

CONFIG = tiny.config(micro_batch=128, accumulate=8, threads=None)
GROUND = Ground(8, 8, "fp32", {"fp32": {"trouble": "", "gflops": 1.0}}, None)
EVERY = ("micro-batch", "threads")


class MadeUp(Speed):
    """speeds: by micro-batch or threads, 100 else; noise: of each part of a turn."""

    def __init__(self, study, speeds, seconds=3600.0, noise=0.0):
        super().__init__(Session(study, seconds), CONFIG, Children(None), study.folder, seconds, EVERY)
        self.speeds, self.noise, self.asked = speeds, noise, []

    def _look_around(self):
        return GROUND

    def _measure_default(self, default):
        facts = {"unit": "samples", "full_steps": 40, "startup": 1.0, "seconds": 0.1, "steps": 1}
        return facts | {"inter_op_started": False}, ""

    def _turn(self, candidate, seconds):
        self.asked.append((candidate.micro_batch, candidate.threads))
        rate = self.speeds.get(candidate.micro_batch, 100.0) * self.speeds.get(f"{candidate.threads} threads", 1.0)
        if not rate:
            raise TooMuchMemory("too much memory: held 9 GiB")
        rates = [rate * (1 + self.noise), rate, rate * (1 - self.noise)]
        return {"rates": rates, "steps": 3, "seconds": 1.0, "units": rate, "peak": 0}


def run(tmp_path, speeds, **options):
    with tiny.opened(tmp_path / "study") as study:
        speed = MadeUp(study, speeds, **options)
        return speed.run(), speed, dict(study.parts)


def test_each_dimension_goes_on_from_the_best_of_the_one_before(tmp_path):
    found, _, parts = run(tmp_path, {512: 150.0, "4 threads": 1.2})
    assert (found.best.micro_batch, found.best.accumulate, found.best.threads) == (512, 2, 4)
    assert found.is_faster
    assert found.ratio() == {"median": 1.8, "lowest": 1.8, "highest": 1.8}
    assert parts["threads, rung 1: 7 threads"]["settings"]["micro_batch"] == 512


def test_the_better_half_goes_on_and_the_best_so_far_always(tmp_path):
    _, speed, parts = run(tmp_path, {32: 90.0, 64: 95.0, 256: 103.0, 512: 101.0, 1024: 98.0, 16: 50.0}, noise=0.2)
    rungs = [
        [p["label"] for name, p in parts.items() if name.startswith(f"micro-batch, rung {i}:")] for i in (1, 2, 3, 4)
    ]
    assert [len(labels) for labels in rungs] == [7, 4, 3, 2]
    assert rungs[1] == ["8 x 128", "4 x 256", "2 x 512", "1 x 1024"]
    assert rungs[3] == ["8 x 128", "4 x 256"]
    assert speed.found.best.micro_batch == 256


def test_all_take_two_turns_one_after_the_other(tmp_path):
    _, speed, _ = run(tmp_path, {})
    threads = [count for size, count in speed.asked if size == 128 and count]
    assert threads[:8] == [7, 4, 2, 1, 7, 4, 2, 1]


def test_it_ends_early_when_nobody_can_reach_the_leader(tmp_path):
    _, _, parts = run(tmp_path, {512: 200.0})
    assert not [name for name in parts if name.startswith("micro-batch, rung 2")]


def test_a_gain_that_may_be_chance_changes_nothing(tmp_path):
    found, _, parts = run(tmp_path, {512: 101.5}, noise=0.1)
    assert found.best == found.default
    assert not found.is_faster
    assert not [name for name in parts if name.startswith("final")]


def test_the_default_stays_unless_the_best_wins_every_round():
    default = settings.of(CONFIG)
    found = Found(GROUND, default, default._replace(threads=4), "samples", 40, 1.0, 0.1, False)
    found.rounds = [{"ratio": 1.2}, {"ratio": 1.3}, {"ratio": 0.99}]
    assert found.taken == default
    found.rounds[2]["ratio"] = 1.01
    assert found.taken.threads == 4


def test_what_fails_is_named_and_never_taken(tmp_path):
    found, _, parts = run(tmp_path, {512: 0.0, 256: 110.0})
    assert found.best.micro_batch == 256
    assert found.left_out["2 x 512"] == "too much memory: held 9 GiB"
    assert parts["micro-batch, rung 1: 2 x 512"]["failed"] == "too much memory: held 9 GiB"


def test_the_best_so_far_stays_where_it_fails(tmp_path):
    """Nothing can be said to be faster than it."""
    found, _, parts = run(tmp_path, {128: 0.0})
    assert "failed" in parts["micro-batch, rung 1: 8 x 128"]
    assert "failed" not in parts["micro-batch, rung 1: 4 x 256"]
    assert found.best == found.default
    assert found.left_out["8 x 128"] == "too much memory: held 9 GiB"


def test_the_steps_of_what_is_taken_are_shorter_by_the_ratio():
    default = settings.of(CONFIG)
    found = Found(GROUND, default, default._replace(threads=4), "samples", 40, 1.0, 0.3, False)
    assert found.taken_step_seconds == 0.3
    found.rounds = [{"ratio": 1.4}, {"ratio": 1.5}, {"ratio": 1.6}]
    assert found.taken_step_seconds == pytest.approx(0.2)
    found.rounds[0]["ratio"] = 0.9
    assert found.taken_step_seconds == 0.3


def test_nobody_waits_without_end_for_the_default(tmp_path):
    waited = []

    class Late(Children):
        def start(self, program, wish, seconds=None):
            waited.append(seconds)
            raise SideLate("no answer")

    with tiny.opened(tmp_path / "study") as study:
        speed = Speed(Session(study, 60.0), CONFIG, Late(None), study.folder, 60.0, EVERY)
        with pytest.raises(SideFailed, match="the config as it is cannot be measured: no answer"):
            speed._measure_default(settings.of(CONFIG))
    assert waited == [plan.first_patience(60.0)]


def test_what_there_is_no_time_for_is_named(tmp_path):
    found, speed, _ = run(tmp_path, {}, seconds=5.0)
    assert (256, None) in speed.asked
    assert found.left_out["64 x 16"] == "no time; --minutes gives more"
    assert found.left_out["1 thread"] == "no time; --minutes gives more"


@pytest.mark.parametrize("kept", [2, 5, 12])
def test_a_continued_study_comes_to_the_same(kept, tmp_path):
    """Whatever was done before: the same parts follow."""
    speeds = {512: 105.0, 256: 104.0, "4 threads": 1.1}
    whole, _, parts = run(tmp_path / "whole", speeds, noise=0.2)
    with tiny.opened(tmp_path / "again" / "study") as study:
        for name in list(parts)[:kept]:
            study.record(name, parts[name])
    again, speed, found = run(tmp_path / "again", speeds, noise=0.2)
    assert list(found) == list(parts)
    assert again.best == whole.best
    assert len(speed.asked) < len([name for name in parts if "rung" in name]) + 2 * plan.ROUNDS

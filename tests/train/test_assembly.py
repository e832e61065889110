"""The schedules that a config can say, at the lengths that mission.md names."""

import math

import pytest

from fullstride.recipes.length import Length
from fullstride.train.assembly import build_scaler, build_schedule, mind_islands

from .runs import small, train


def rates(config, steps, at):
    schedule = build_schedule(config, Length(steps, None))
    return [config.optimizer.lr * schedule(step) for step in at]


def test_a_warm_up_of_4000_steps_then_half_every_50000():
    config = small(optimizer={"lr": 1e-4}, schedule={"name": "step", "warmup": 4000, "every": 50_000, "factor": 0.5})
    at = [0, 1999, 3999, 4000, 53_999, 54_000, 104_000]
    assert rates(config, 300_000, at) == pytest.approx([2.5e-8, 5e-5, 1e-4, 1e-4, 1e-4, 5e-5, 2.5e-5])


def test_a_cosine_of_200000_steps_to_1e_6_whatever_the_run_has():
    config = small(optimizer={"lr": 1e-4}, schedule={"warmup": 4000, "over": 200_000, "floor": 1e-6})
    middle = 1e-6 + (1e-4 - 1e-6) * (0.5 + 0.5 * math.cos(math.pi * 96_000 / 196_000))
    assert rates(config, 50_000, [3999, 100_000, 200_000, 250_000]) == pytest.approx([1e-4, middle, 1e-6, 1e-6])
    assert rates(config, 900_000, [100_000]) == pytest.approx([middle])


def test_shares_are_of_the_run():
    config = small(optimizer={"lr": 1.0}, schedule={"warmup": 0.05, "over": 0.5, "floor": 0.0})
    assert rates(config, 1000, [49, 500, 900]) == pytest.approx([1.0, 0.0, 0.0])
    steps = small(optimizer={"lr": 1.0}, schedule={"name": "step", "every": 0.25, "warmup": 0})
    assert rates(steps, 1000, [249, 250, 999]) == [1.0, 0.5, 0.125]
    stable = small(optimizer={"lr": 1.0}, schedule={"name": "stable", "decay": 100, "floor": 0.0, "warmup": 0})
    assert rates(stable, 1000, [900, 925, 1000]) == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup": 4000}, "schedule.warmup: expected fewer steps than the 12 of cosine, got 4000"),
        ({"warmup": 8, "over": 0.5}, "schedule.warmup: expected fewer steps than the 6 of cosine, got 8"),
        ({"name": "stable", "warmup": 12}, "schedule.warmup: expected fewer steps than the 12 of the run, got 12"),
        ({"name": "stable", "warmup": 2, "decay": 11}, "schedule.decay: expected at most 10 steps, which"),
    ],
)
def test_steps_that_do_not_fit_into_the_run_are_one_line(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build_schedule(small(schedule=changes), Length(12, None))


def test_a_share_of_decay_is_counted_as_every_other_share():
    share, steps = (small(schedule={"name": "stable", "decay": decay, "warmup": 0}) for decay in (0.2, 2))
    assert rates(share, 13, range(14)) == rates(steps, 13, range(14))  # 2.6 steps are 2


@pytest.mark.parametrize("schedule", [{"name": "constant"}, {"name": "step"}, {"over": 200_000}])
def test_a_warm_up_that_is_longer_than_the_run_is_said_in_its_log(tmp_path, schedule):
    train(tmp_path / "run", small(schedule={**schedule, "warmup": 4000}, optimizer={"lr": 1e-3}))
    said = "schedule.warmup: 4000 steps are more than the 12 of the run, which ends at 0.003 of optimizer.lr"
    assert (tmp_path / "run" / "log.txt").read_text().count(said) == 1


def test_a_warm_up_that_fits_is_not(tmp_path):
    train(tmp_path / "run", small(schedule={"name": "constant", "warmup": 12}))
    assert "schedule.warmup" not in (tmp_path / "run" / "log.txt").read_text()


def test_the_loss_scale_is_the_configs():
    scaler = build_scaler(small(loss_scale={"start": 8, "growth": 4, "interval": 2, "backoff": 0.25}), "fp16")
    scaler.update(True)
    scaler.update(True)
    assert scaler.scale == 32
    scaler.update(False)
    assert scaler.scale == 8


def test_there_is_no_loss_scale_where_nothing_is_scaled():
    assert build_scaler(small(), "fp32") is None
    assert build_scaler(small(), "bf16") is None


@pytest.mark.parametrize(
    ("distributed", "words"),
    [
        ({"local_steps": 600}, "600 steps leave 3 meetings of the islands, and outer_momentum 0.5 wants 4 or more"),
        (
            {"local_steps": 250, "outer_momentum": 0.9},
            "250 steps leave 8 meetings of the islands, and outer_momentum 0.9 wants 20 or more",
        ),
        ({"local_steps": 250}, ""),
        ({"local_steps": 600, "outer_momentum": 0.0}, ""),
        ({}, ""),
    ],
)
def test_islands_that_meet_too_seldom_for_their_momentum_are_warned_of(distributed, words, caplog):
    config = small(steps=2000, distributed=distributed)
    mind_islands(config, Length(2000, None))
    assert (words in caplog.text) if words else not caplog.text

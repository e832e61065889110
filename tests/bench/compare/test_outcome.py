"""What the parts of a comparison come to."""

import math

import pytest

from fullstride.bench.compare import outcome
from fullstride.bench.compare.outcome import Steps
from fullstride.bench.measure import Timing
from fullstride.bench.step import results
from fullstride.bench.step.cases import STOCK_DEFAULT, Case
from fullstride.bench.step.results import Measured

from .tiny import FACTS, OURS, PEAKS


def answer(seconds, losses, peak=10, faults=0, frozen=()):
    return {
        "seconds": list(seconds), "losses": list(losses), "peak_bytes": peak, "faults": faults, "frozen": list(frozen)
    }  # fmt: skip


def parts(**rounds):
    """Ours takes 1 s a step, stock 2 s; two steps of warm-up, one more, then rounds of two steps."""
    start = {
        "warm_up": 2, "steps": 2, "peaks": PEAKS, "failed": {}, "facts": {OURS: FACTS, STOCK_DEFAULT: FACTS},
        "answers": [
            {OURS: answer([5.0, 5.0], [9.0, 8.0]), STOCK_DEFAULT: answer([7.0, 7.0], [9.0, 8.0], peak=30)},
            {OURS: answer([1.0], [7.0]), STOCK_DEFAULT: answer([2.0], [7.0])},
        ],
    }  # fmt: skip
    found = {"start": start}
    for number in (1, 2):
        losses = [7.0 - 2 * number + 1, 7.0 - 2 * number]
        found[f"round {number}"] = {
            "answers": {
                OURS: answer([1.0, 1.0], losses, peak=20, faults=number),
                STOCK_DEFAULT: answer([2.0, 2.0], losses, frozen=[(3 + 2 * number, ["0"])]),
            },
            "failed": {},
        }
    return found | rounds


def test_the_clock_of_a_side_is_that_of_its_steps_after_warm_up():
    ours, stock = (outcome.steps_of(parts(), name) for name in (OURS, STOCK_DEFAULT))
    assert ours.clock == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert stock.clock == [0.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert (ours.warm_up_seconds, stock.warm_up_seconds) == (10.0, 14.0)
    assert ours.losses == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]
    assert (ours.peak_bytes, stock.peak_bytes) == (20, 30)
    assert ours.faults == [0.5, 1.0]
    assert stock.frozen == [(5, ["0"]), (7, ["0"])]


def test_losses_at_the_same_time_are_those_when_the_fastest_is_done():
    found = outcome.at_same_time([outcome.steps_of(parts(), name) for name in (OURS, STOCK_DEFAULT)])
    assert (found["seconds"], found["window"]) == (5.0, 3)
    assert found["sides"][OURS] == {"step": 7, "seconds": 5.0, "mean": 4.0, "lowest": 3.0, "highest": 5.0}
    assert found["sides"][STOCK_DEFAULT] == {"step": 4, "seconds": 4.0, "mean": 7.0, "lowest": 6.0, "highest": 8.0}


def test_losses_at_the_same_step_are_those_of_the_last():
    found = outcome.at_same_step([outcome.steps_of(parts(), name) for name in (OURS, STOCK_DEFAULT)])
    assert found["step"] == 7
    assert [side["mean"] for side in found["sides"].values()] == [4.0, 4.0]


def steps(num_steps, seconds=1.0, losses=None):
    losses = losses or [float(number) for number in range(num_steps)]
    return Steps(OURS, losses, [seconds * n for n in range(num_steps)], 1.0, 1, [0.0], [])


@pytest.mark.parametrize(("num_steps", "window"), [(2, 2), (25, 3), (70, 7), (1000, 20)])
def test_a_loss_is_the_mean_of_more_steps_the_more_there_are(num_steps, window):
    found = outcome.at_same_step([steps(num_steps)])
    assert found["window"] == window
    last = [float(number) for number in range(num_steps)][-window:]
    assert found["sides"][OURS]["mean"] == sum(last) / window


def test_a_loss_that_is_no_number_has_no_mean():
    found = outcome.at_same_step([steps(5, losses=[1.0, 1.0, 1.0, math.nan, 1.0])])
    assert found["sides"][OURS] == {"step": 5, "seconds": 4.0}


def test_a_side_that_failed_has_no_figures_and_the_others_have():
    gone = {"answers": {OURS: answer([1.0, 1.0], [2.0, 1.0])}, "failed": {STOCK_DEFAULT: "hung"}}
    found = outcome.result_of(Case("tiny"), parts(**{"round 3": gone}), False, {STOCK_DEFAULT: "hung"})
    assert [side.name for side in found.sides] == [OURS]
    assert found.sides[0].timing == Timing((1.0, 1.0, 1.0))
    assert (found.failed, found.ratios) == ({STOCK_DEFAULT: "hung"}, [])


def test_figures_of_a_side_are_medians_of_its_rounds():
    found = outcome.result_of(Case("tiny"), parts(), False, {})
    ours = found.sides[0]
    assert (ours.units_per_second, ours.gflops, ours.share_of_peak) == (8.0, 1.0, 0.01)
    assert (ours.faults, ours.peak_bytes) == (0.75, 20)
    [ratio] = found.ratios
    assert (ratio.peer, ratio.ratio.median) == (STOCK_DEFAULT, 2.0)
    assert outcome.turns_of(parts()) == (2, 2, 12.0, 2)


def measured(name, losses):
    return Measured(name, "fp32", Timing((1.0, 2.0)), 8.0, 0.0, 1 << 20, 1.0, None, losses, FACTS)


def test_a_loss_of_zero_can_be_compared():
    sides = [measured(OURS, [0.5, 0.0]), measured(STOCK_DEFAULT, [0.0, 0.0])]
    assert results.differences(sides, 2) == {OURS: 0.5}


@pytest.mark.parametrize(
    ("losses", "others", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 3.0], [1.0, 2.0], 0.5),
        ([0.5], [0.0], 0.5),
        ([math.nan], [math.nan], 0.0),
        ([math.nan], [1.0], None),
    ],
)
def test_the_largest_difference_of_losses_is_relative(losses, others, expected):
    assert outcome.largest_difference(losses, others) == expected

"""The section of a comparison with stock PyTorch, in the report of a run and in the page of a study."""

import copy
from typing import Any

import numpy as np
import pytest

from fullstride.report import comparison, drawing
from fullstride.report import comparison_figures as drawn
from fullstride.report.section import WIDTH

from .runs import COMPARE, make_run

TIMED: dict[str, Any] = copy.deepcopy(COMPARE)
"""The same with the seconds of a newer file: two steps of warm-up, then ours took 1 s a step and stock 3 s."""
for _side, _seconds in zip(TIMED["sides"], (1.0, 3.0), strict=True):
    _side |= {"seconds": [0.0, 0.0, _seconds, 2 * _seconds], "faults": 12.4}
TIMED["turns"] |= {"warm_up": 2}
TIMED["losses_at"] = {
    "same_time": {
        "seconds": 2.0, "window": 2,
        "sides": {
            "fullstride auto": {"step": 4, "seconds": 2.0, "mean": 0.75, "lowest": 0.5, "highest": 1.0},
            "stock default": {"step": 2, "seconds": 0.0, "mean": 1.5, "lowest": 1.0, "highest": 2.0},
        },
    },
}  # fmt: skip


def test_comparison_says_how_much_faster_with_its_spread():
    section = comparison.section(make_run(compare=COMPARE))
    assert "3.00 times as fast as stock PyTorch (2.90 to 3.10 in the rounds)" in section.text
    assert [row[0] for row in section.tables[0].rows] == ["Fullstride, fp32", "stock PyTorch, fp32"]
    assert [row[1] for row in section.tables[0].rows] == ["150", "450"]
    assert [row[4] for row in section.tables[0].rows] == ["1.17", "1.05"]  # without the one that was not finite
    starts = ("Training loss of every side", "Samples a second", "The most memory")  # an older file has no seconds
    assert len(section.figures) == len(starts)
    for figure, start in zip(section.figures, starts, strict=True):
        assert figure.caption.startswith(start)


def test_comparison_with_other_settings_says_so():
    own = {"seed": 0, "model": {"hidden": [512], "dropout": 0.0}}
    theirs = {"seed": 0, "model": {"hidden": [256], "dropout": 0.0}}
    section = comparison.section(make_run(config=own, compare=COMPARE | {"config": theirs}))
    assert section.text.endswith("with other settings than this run: model.hidden [256] instead of [512].")
    assert "other settings" not in comparison.section(make_run(config=own, compare=COMPARE | {"config": own})).text


def test_loss_of_a_side_is_that_of_its_last_steps():
    compare = {"sides": [{"name": "stock default", "losses": [100.0] * 50 + [2.0] * 10}]}
    assert comparison.section(make_run(compare=compare)).tables[0].rows[0][4] == "2.00"


@pytest.mark.parametrize("compare", [None, {}, {"sides": []}, {"sides": "x", "ratios": 3}])
def test_without_a_comparison_there_is_no_section(compare):
    assert comparison.section(make_run(compare=compare)) is None
    assert comparison.ratio(compare) is None


def test_comparison_with_missing_parts_shows_the_rest():
    section = comparison.section(make_run(compare={"sides": [{"name": "stock default"}], "ratios": [{}]}))
    assert section.tables[0].rows == [("stock PyTorch", "-", "-", "-", "-", "-", "-")]
    assert section.figures == []


def test_losses_over_time_are_shown_where_the_file_has_them():
    section = comparison.section(make_run(compare=TIMED))
    assert section.figures[0].caption.startswith("Training loss over seconds of training")
    assert len(section.figures) == 4
    losses = "Fullstride, fp32: 0.75 [0.5 to 1] at step 4; stock PyTorch, fp32: 1.5 [1 to 2] at step 2."
    assert f"Loss after 2.00\N{NO-BREAK SPACE}s of training, the mean of 2 steps: {losses}" in section.text
    assert "seconds count after 2 steps of warm-up" in section.text
    assert [row[6] for row in section.tables[0].rows] == ["12", "12"]


def test_the_curve_over_time_begins_where_the_clock_does():
    ours, stock = (drawn._timed(side) for side in TIMED["sides"])
    np.testing.assert_array_equal(ours[0], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(stock[0], [0.0, 3.0, 6.0])
    np.testing.assert_array_equal(stock[1], [1.0, 0.7, 0.5])


@pytest.mark.parametrize("seconds", [None, [1.0], "soon", [0.0, 0.0, 1.0, 2.0, 3.0]])
def test_seconds_that_fit_no_losses_are_left_out(seconds):
    sides = [side | {"seconds": seconds} for side in TIMED["sides"]]
    assert len(comparison.section(make_run(compare=COMPARE | {"sides": sides})).figures) == 3


@pytest.mark.parametrize("at", [None, [], {"same_time": 3}, {"same_time": {"sides": []}}, {"same_time": {"sides": {}}}])
def test_losses_at_the_same_time_that_cannot_be_read_are_left_out(at):
    assert "of training" not in comparison.sentences(TIMED | {"losses_at": at})


def test_a_loss_that_is_no_number_is_said():
    at = copy.deepcopy(TIMED["losses_at"])
    at["same_time"]["sides"]["stock default"] = {"step": 2, "seconds": 0.0}
    assert "stock PyTorch, fp32: not a number at step 2." in comparison.sentences(TIMED | {"losses_at": at})


def test_the_spread_of_throughput_is_that_of_the_times():
    rate = drawn.rate(TIMED["sides"][0])
    assert rate == (853.0, pytest.approx(853 * 150 / 155), pytest.approx(853 * 150 / 149))


def test_the_page_of_a_study_names_what_was_tried():
    section = comparison.of_study(TIMED | {"trials": ["as it comes: 450 ms", "fused: dies: of shame"]})
    assert section.tables[1].rows == [("as it comes", "450 ms"), ("fused", "dies: of shame")]
    assert len(comparison.of_study(TIMED).tables) == 1


ALONE = TIMED | {"sides": TIMED["sides"][:1]}


@pytest.mark.parametrize("compare", [TIMED, COMPARE, ALONE], ids=["new", "old", "alone"])
def test_everything_can_be_drawn(compare):
    figure = comparison.picture(compare)
    assert drawing.png(figure.draw, WIDTH, figure.height).startswith(b"\x89PNG")
    for number, one in enumerate(comparison.of_study(compare).figures):
        assert "Fullstride" in drawing.draw(one, number)


def test_curves_of_a_thousand_steps_that_span_decades_are_drawn_on_a_logarithmic_scale():
    losses = [10.0 ** (-3 * number / 1000) for number in range(1000)]
    side = TIMED["sides"][0] | {"losses": losses, "seconds": [float(number) for number in range(1000)]}
    markup = drawing.draw(comparison.of_study(COMPARE | {"sides": [side]}).figures[0], 1)
    assert "loss, logarithmic" in markup
    assert "training (min)" in markup

"""The rates of a range test, and how they are written."""

import itertools

import pytest

from fullstride.studies.lr_find.span import Span, as_text


def test_rates_go_from_the_lowest_to_the_highest_by_one_factor():
    span = Span(1e-4, 1.0, 41)
    rates = [span.rate(step) for step in range(41)]
    assert rates[0] == 1e-4
    assert rates[-1] == pytest.approx(1.0)
    factors = [b / a for a, b in itertools.pairwise(rates)]
    assert factors == pytest.approx([10**0.1] * 40)


def test_what_is_not_asked_for_lies_around_the_own_rate():
    assert Span.around(1e-3, None, None) == Span(1e-6, 1e-1)
    assert Span.around(1e-3, 1e-4, 10.0, 50) == Span(1e-4, 10.0, 50)


@pytest.mark.parametrize(
    ("lowest", "highest", "steps", "line"),
    [
        (0.0, 1.0, 100, "--lowest: expected a learning rate above 0, got 0"),
        (1e-3, float("inf"), 100, "--highest: expected a learning rate above 0, got inf"),
        (1e-3, 5e-3, 100, r"--highest: expected 10 times the lowest rate \(0.001\) or more, got 0.005"),
        (1e-3, 1.0, 19, "--steps: expected 20 or more in a range test, got 19"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(lowest, highest, steps, line):
    with pytest.raises(ValueError, match=line):
        Span(lowest, highest, steps)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.0031, "3.1e-3"), (1e-3, "1e-3"), (0.05, "0.05"), (0.0123, "0.012"), (2.26e-5, "2.3e-5"), (4.0, "4"),
     (1e4, "1e4"), (9.96e-4, "1e-3"), (0.00999, "1e-2"), (120.0, "120")],
)  # fmt: skip
def test_rates_are_written_shortly(rate, text):
    assert as_text(rate) == text


def test_the_recipes_own_rate_keeps_its_digits():
    assert as_text(3.125e-4, 4) == "3.125e-4"

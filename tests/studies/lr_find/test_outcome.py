"""What several range tests and trainings come to."""

import pytest

from fullstride.studies.lr_find import outcome
from fullstride.studies.lr_find.span import Span

SPAN = Span(1e-6, 1e-1, 100)


def part(seed, place):
    """A range test whose loss is lowest at this rate; without one it falls to the end."""
    rates = [SPAN.rate(step) for step in range(SPAN.steps)]
    losses = [3.0 - 0.02 * step if place is None or rate < place else 4.0 for step, rate in enumerate(rates)]
    return {"seed": seed, "rates": rates, "losses": losses, "diverged": None, "why": "", "skipped": 0}


def test_the_rate_is_the_median_of_the_repeats_in_two_digits():
    found = outcome.readings([part(0, 1e-3), part(1, 1e-4), part(2, 1e-2)], SPAN)
    each = sorted(repeat["suggestion"] for repeat in found["repeats"])
    assert found["suggestion"] == {"median": each[1], "lowest": each[0], "highest": each[2]}
    assert found["rate"] == float(f"{each[1]:.1e}")
    assert each[0] < each[1] < each[2]


def test_most_repeats_are_enough():
    found = outcome.readings([part(0, 1e-3), part(1, 1e-3), part(2, None)], SPAN)
    assert found["rate"] is not None
    assert found["why_not"] == ["the loss still fell at the highest rate: give a --highest above 0.1"]


def test_without_most_repeats_there_is_no_rate():
    found = outcome.readings([part(0, 1e-3), part(1, None)], SPAN)
    assert found["rate"] is None
    assert found["suggestion"] is None
    line = outcome.headline(found | {"own": 1e-3})
    assert line == (
        "no suggestion: the loss still fell at the highest rate: give a --highest above 0.1; the recipe has 1e-3"
    )


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([(1.5, 1.4)], "better"),
        ([(1.5, 1.6)], "worse"),
        ([(1.5, 1.501)], "the same: less than 0.5 % apart"),
        ([(1.5, 1.4), (1.5, 1.3)], "better"),
        ([(1.5, 1.4), (1.5, 1.6)], "undecided: the seeds do not agree"),
        ([(1.5, 1.4), (1.5, 1.502)], "no worse"),
        ([(-1.5, -1.6)], "better"),
        ([(1.5, None)], "worse: 1 of 1 trainings diverged"),
        ([(None, 1.5), (1.5, 1.5)], "better: with the recipe's own rate 1 of 2 trainings diverged"),
        ([(None, None)], "worse: 1 of 1 trainings diverged, 1 with the recipe's own"),
    ],
)
def test_the_verdict_says_what_the_losses_say(losses, expected):
    assert outcome.verdict(losses) == expected


def test_where_it_diverged_is_told_with_its_spread():
    repeats = [{"diverged": place} for place in (0.1, 0.3, None, 0.2)]
    found = {"repeats": repeats, "lowest_at": {"median": 0.01, "lowest": 0.008, "highest": 0.02}, "span": {}}
    assert outcome.ends(found) == "the loss was lowest at 0.01 [8e-3..0.02]; 3 of 4 diverged, at 0.2 [0.1..0.3]"

"""What a range test's losses say."""

import math

import numpy as np
import pytest

from fullstride.studies.lr_find import rule
from fullstride.studies.lr_find.span import Span

SPAN = Span(1e-6, 1e-1, 200)


def rates(span=SPAN):
    return [span.rate(step) for step in range(span.steps)]


def valley(rate, place=1e-3):
    """Falls from 5 to 2 in two decades before the place, and rises behind it."""
    decades = math.log10(rate / place)
    return 2 - 1.5 * max(-2.0, decades) if decades < 0 else 2 + 2 * decades


def read(losses, span=SPAN, diverged=False):
    return rule.read(rates(span)[: len(losses)], losses, span.steps, diverged)


def test_the_suggestion_is_a_little_before_the_lowest_loss():
    found = read([valley(rate) for rate in rates()])
    assert found.lowest_rate == pytest.approx(1e-3, rel=0.3)
    assert 0.3e-3 < found.suggestion < found.lowest_rate
    assert not found.why_not


def test_at_the_suggestion_the_smoothed_loss_has_done_its_share_of_the_fall():
    found = read([valley(rate) for rate in rates()])
    at = rates().index(found.suggestion)
    threshold = found.smooth[0] - rule.SHARE * (found.smooth[0] - min(found.smooth))
    assert found.smooth[at] <= threshold < found.smooth[at - 1]


def test_the_number_of_steps_hardly_matters():
    several = []
    for steps in (60, 150, 600):
        span = Span(SPAN.lowest, SPAN.highest, steps)
        several.append(read([valley(rate) for rate in rates(span)], span).suggestion)
    assert max(several) < 1.3 * min(several)


def test_noise_hardly_matters():
    generator = np.random.default_rng(0)
    several = [read([valley(r) + 0.1 * generator.normal() for r in rates()]).suggestion for _ in range(20)]
    assert max(several) < 2 * min(several)


def test_a_loss_that_explodes_is_not_seen_from_before():
    losses = [valley(rate) for rate in rates() if rate < 3e-3]
    tame = read([*losses, 3.0, 4.0, 5.0], diverged=True)
    wild = read([*losses, 3e3, 4e8, 5e12], diverged=True)
    assert wild.suggestion == pytest.approx(tame.suggestion, rel=0.3)


def test_of_two_valleys_as_deep_as_each_other_it_is_the_first():
    found = read([min(valley(rate, 1e-4), valley(rate, 1e-2)) for rate in rates()])
    assert found.suggestion < 1e-4


def test_a_much_deeper_second_valley_is_taken():
    found = read([min(valley(rate, 1e-4) + 1, valley(rate, 1e-2)) for rate in rates()])
    assert 1e-3 < found.suggestion < 1e-2


def test_losses_below_zero_are_losses_like_others():
    found = read([valley(rate) - 10 for rate in rates()])
    assert found.suggestion == read([valley(rate) for rate in rates()]).suggestion


def test_noise_alone_is_no_fall():
    generator = np.random.default_rng(1)
    for _ in range(20):
        found = read([3 + 0.1 * generator.normal() for _ in rates()])
        assert found.suggestion is None
        assert "did not fall by more than its noise" in found.why_not


def test_a_loss_that_only_rises_has_no_rate():
    found = read([2 + step / 100 for step in range(SPAN.steps)])
    assert found.suggestion is None


def test_a_loss_that_falls_to_the_end_asks_for_higher_rates():
    found = read([valley(rate, 1e-1) for rate in rates()])
    assert found.suggestion is None
    assert found.why_not == "the loss still fell at the highest rate: give a --highest above 0.1"


def test_the_lowest_loss_at_the_end_is_no_matter_if_it_diverged_there():
    losses = [valley(rate) for rate in rates() if rate < 1e-3]
    assert read(losses, diverged=True).suggestion is not None


def test_a_fall_at_the_very_start_asks_for_lower_rates():
    losses = [5.0, 3.0, *[2.0] * 100, *[6.0] * 98]
    found = read(losses)
    assert found.why_not == "the loss fell at the lowest rates already: give a --lowest below 1e-06"


def test_the_mean_of_equal_values_is_that_value_from_the_first_on():
    mean = rule.RunningMean(10)
    assert [mean.add(3.0) for _ in range(5)] == pytest.approx([3.0] * 5)


def test_the_mean_follows_within_its_window():
    mean = rule.RunningMean(10)
    for _ in range(100):
        mean.add(1.0)
    values = [mean.add(2.0) for _ in range(20)]
    assert 1.5 < values[9] < 1.8 < values[19] < 2


@pytest.mark.parametrize(("level", "best", "expected"), [(4.0, 3.0, 6.0), (4.0, 1.0, 7.0), (-4.0, -5.0, -2.0)])
def test_a_loss_has_diverged_above_this(level, best, expected):
    assert rule.limit(level, best) == expected

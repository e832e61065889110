"""From the losses of a range test to a learning rate.

    mean_i        of the losses up to step i, older ones counting less by the factor 1 - 1 / window, bias corrected
    smooth        the means of these means, taken backwards, so that the curve does not lag behind the rates
    fall          smooth at the first step - smooth at its lowest
    suggestion    the first rate at which smooth has done SHARE of its fall

The rate of the lowest loss itself is too high: there, what is learnt and what the steps throw out of place cancel each
other. It is also the place that is known least, as the curve is flat around it; where SHARE of the fall is done the
curve is still steep, so repeats agree. How far that is before the lowest point follows from the shape of the curve: far
for a wide valley, little for a sudden end. Of two valleys of the same depth it is the first. Warm-up and decay of the
recipe's schedule then make of it what is safe at the start and fine at the end.

A loss that has grown beyond all measure must not be seen from before: one above limit() counts as that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHARE = 0.95
_WINDOW = 1 / 20  # of all steps: of the logarithm of the rates, however many steps those are
_LEAST_FALL = 7.0  # standard errors of the smoothed loss; noise alone falls by so much once in a thousand tests
_START = 3  # windows: smooth needs so many for a fall at the very first step
_MEDIAN_OF_NORMAL = 0.6745

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """smooth: a value for each loss. suggestion: None where there is none, and `why_not` says why."""

    smooth: list[float]
    lowest_rate: float
    suggestion: float | None
    why_not: str = ""


def window_of(steps: int) -> int:
    return max(2, round(_WINDOW * steps))


class RunningMean:
    """Bias corrected: the mean of two losses is not one with a zero before them."""

    def __init__(self, window: int) -> None:
        self._keep, self._sum, self._weight = 1 - 1 / window, 0.0, 0.0

    def add(self, value: float) -> float:
        """The mean with this value."""
        self._sum = self._keep * self._sum + (1 - self._keep) * value
        self._weight = self._keep * self._weight + (1 - self._keep)
        return self._sum / self._weight


def limit(level: float, best: float) -> float:
    """A smoothed loss above it has diverged: it is as far above where it began as it was below, and half of that, too.

    Half, so that noise is no end of a test whose loss has hardly fallen yet.
    """
    return level + max(level - best, abs(level) / 2)


def read(rates: Sequence[float], losses: Sequence[float], steps: int, diverged: bool) -> Reading:
    """steps: those of the whole range; there are fewer losses if it diverged before."""
    window, values = window_of(steps), np.array(losses, float)
    smooth = _smoothed(values, window)
    lowest = int(smooth.argmin())
    fall = float(smooth[0] - smooth[lowest])
    done = int(np.argmax(smooth <= smooth[0] - SHARE * fall))
    why_not = ""
    if fall <= _LEAST_FALL * _error(values, window):
        why_not = "the loss did not fall by more than its noise: give more --steps, or a higher --highest"
    elif lowest >= len(smooth) - window and not diverged:
        why_not = f"the loss still fell at the highest rate: give a --highest above {rates[-1]:.3g}"
    elif done < _START * window:
        why_not = f"the loss fell at the lowest rates already: give a --lowest below {rates[0]:.3g}"
    return Reading(smooth.tolist(), rates[lowest], None if why_not else rates[done], why_not)


def _smoothed(losses: Floats, window: int) -> Floats:
    most = limit(float(losses[:window].mean()), float(_means(losses, window).min()))
    return _means(_means(np.minimum(losses, most), window)[::-1], window)[::-1]


def _means(values: Floats, window: int) -> Floats:
    mean = RunningMean(window)
    return np.array([mean.add(float(value)) for value in values])


def _error(values: Floats, window: int) -> float:
    """The standard error of a point of smooth, from how far neighbours are apart, of which a fall is a small part."""
    if len(values) < 2:
        return math.inf
    apart = float(np.median(np.abs(np.diff(values)))) / _MEDIAN_OF_NORMAL / math.sqrt(2)
    return apart / math.sqrt(2 * window)

"""Which rates a range test tries: so many, from the lowest to the highest, each by the same factor above the last."""

import math
from dataclasses import dataclass

STEPS, REPEATS = 150, 3
_BELOW, _ABOVE = 1000.0, 100.0  # the recipe's own rate
_LEAST_STEPS, _LEAST_FACTOR = 20, 10.0
OWN_DIGITS = 6


@dataclass(frozen=True)
class Span:
    lowest: float
    highest: float
    steps: int = STEPS

    def __post_init__(self) -> None:
        for name in ("lowest", "highest"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"--{name}: expected a learning rate above 0, got {value:g}")
        if self.highest < _LEAST_FACTOR * self.lowest:
            raise ValueError(
                f"--highest: expected {_LEAST_FACTOR:g} times the lowest rate ({self.lowest:g}) or more, got"
                f" {self.highest:g}"
            )
        if self.steps < _LEAST_STEPS:
            raise ValueError(f"--steps: expected {_LEAST_STEPS} or more in a range test, got {self.steps}")

    @classmethod
    def around(cls, own: float, lowest: float | None, highest: float | None, steps: int = STEPS) -> "Span":
        """own: the recipe's rate, for what was not asked for."""
        return cls(own / _BELOW if lowest is None else lowest, own * _ABOVE if highest is None else highest, steps)

    def rate(self, step: int) -> float:
        """lowest * (highest / lowest) ** (step / (steps - 1))"""
        return self.lowest * (self.highest / self.lowest) ** (step / (self.steps - 1))


def as_text(rate: float, digits: int = 2) -> str:
    """3.1e-3, 0.05: short, and a word of a command line. The recipe's own rate may have more digits."""
    if 0.01 <= rate < 1000:
        return f"{float(f'{rate:.{digits - 1}e}'):g}"
    mantissa, exponent = f"{rate:.{digits - 1}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"

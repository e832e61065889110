"""How long a run is, and how often something happens in it: in steps, or in epochs of the data.

    steps = ceil(epochs * steps of an epoch)        and `every: 5 epochs` is due at the first step that ends
                                                    the fifth epoch, the tenth ...

Steps of an epoch are a fraction: micro-batches are cut from one stream that runs over the ends of epochs.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

_EVERY = re.compile(r"(\d+(?:\.\d+)?) *(steps?|epochs?|)")
HOW_OFTEN = 'so many steps, or "5 epochs"; 0'
"""How the help and errors begin to explain it."""


@dataclass(frozen=True)
class Length:
    steps: int  # of the run
    epoch: Fraction | None  # steps of an epoch; None: nobody knows, as the data has no length

    def is_due(self, every: int | str, step: int) -> bool:
        """Whether `step` steps done are a multiple of it, or the first step behind one. `every` of 0: never."""
        period, is_epochs = parse(every)
        if not period or step < 1:
            return False
        if is_epochs:
            assert self.epoch is not None  # see check()
            period *= self.epoch
        return step // period > (step - 1) // period

    def times(self, every: int | str) -> int:
        """How often it is due in the whole run."""
        period, is_epochs = parse(every)
        if is_epochs:
            assert self.epoch is not None  # see check()
            period *= self.epoch
        return int(self.steps // period) if period else 0

    def of(self, share: float) -> int:
        """Steps: a share of the run below 1, themselves from 1 on."""
        return int(Fraction(str(share)) * self.steps) if share < 1 else int(share)  # 0.29 of 100 are 29

    def epochs(self, step: int) -> float | None:
        return None if self.epoch is None else float(step / self.epoch)

    def check(self, name: str, every: int | str) -> None:
        """ValueError for epochs of data of which nobody knows how long one is."""
        if self.epoch is None and parse(every)[1]:
            raise ValueError(f"{name}: expected a number of steps, as the data has no length, got {every!r}")


def of_run(steps: int | None, epochs: float | None, epoch: Fraction | None) -> Length:
    """epoch: the steps of one."""
    if steps is not None:
        return Length(steps, epoch)
    assert epochs is not None
    if epoch is None:
        raise ValueError(f"epochs: expected steps, as the data has no length, got epochs {epochs:g}")
    return Length(max(1, math.ceil(Fraction(str(epochs)) * epoch)), epoch)


def parse(every: int | str) -> tuple[Fraction, bool]:
    """(number, whether it is one of epochs)."""
    if not isinstance(every, str):
        return Fraction(every), False
    found = _EVERY.fullmatch(every.strip())
    if found is None or (not found[2].startswith("epoch") and "." in found[1]):
        raise ValueError(f'expected a number of steps, or text like "5 epochs", got {every!r}')
    return Fraction(found[1]), found[2].startswith("epoch")


def is_every(every: int | str, least: int) -> bool:
    """Whether it says how often, and is no less than so many steps or more than 0 epochs."""
    try:
        period, is_epochs = parse(every)
    except ValueError:
        return False
    return period > 0 if is_epochs else period >= least


def is_share_or_steps(value: float) -> bool:
    """0.05 of the run, or 4000 steps; 1.5 is neither."""
    return 0 <= value < 1 or (1 <= value < math.inf and value == int(value))

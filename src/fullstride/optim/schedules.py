"""Learning-rate schedules: pure functions of the step.

    schedule = WarmupCosine(lr=3e-4, warmup=2000, steps=100_000)
    schedule(step)                  the FACTOR on the optimizer's learning rate for step `step`, counted from 0

`step` is the number of optimizer steps already taken, which is what torch.optim.lr_scheduler.LambdaLR passes:

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)      # scheduler.step() after each step
    schedule.set(optimizer, step)                                           # or this before each step, with no object

Nothing is counted inside, so resuming at a step is calling with that step. `dataclasses.asdict(schedule)` is plain
numbers and strings, and `type(schedule)(**those)` the same schedule.

The warm-up is linear, (step + 1) / warmup: the first step already learns something, the last one of the warm-up has
the full rate, and with warmup=0 step 0 has it. Decay counts from the end of the warm-up, where it is still 1.

A floor is an absolute learning rate, so a factor can only be made of it with the rate it belongs to: `lr`, that of the
optimizer. In groups with another rate everything scales, the floor as well.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

from torch import Tensor
from torch.optim import Optimizer


class Schedule:
    """What all share; a subclass is a frozen dataclass with a `__call__`."""

    def __call__(self, step: int) -> float:
        raise NotImplementedError

    def set(self, optimizer: Optimizer, step: int) -> None:
        """The learning rate of every group for step `step`.

        The rate that is multiplied stands in the group as "initial_lr", as torch's schedulers keep it. It goes into
        the optimizer's state_dict, so that a resumed run multiplies the same one.
        """
        factor = self(step)
        for group in optimizer.param_groups:
            rate = group["lr"]
            base = group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)
            if isinstance(rate, Tensor):
                rate.copy_(base * factor)  # a compiled step reads this very tensor
            else:
                group["lr"] = base * factor

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # the subclasses are dataclasses
            value = getattr(self, field.name)
            if field.type is int and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                self._refuse(f"{field.name} as a number of steps, 0 or more", repr(value))

    def _refuse(self, expected: str, got: str) -> None:
        raise ValueError(f"{type(self).__name__}: expected {expected}, got {got}")


@dataclass(frozen=True)
class Constant(Schedule):
    """1 after the warm-up."""

    warmup: int = 0

    def __call__(self, step: int) -> float:
        return _warmup(step, self.warmup)


@dataclass(frozen=True)
class WarmupStepDecay(Schedule):
    """factor ** (number of whole periods of `every` steps since the warm-up)."""

    warmup: int = 4000
    every: int = 50_000
    factor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            self._refuse("`every` of at least 1 step", str(self.every))
        if not 0 < self.factor <= 1:
            self._refuse("a factor above 0 and at most 1", str(self.factor))

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return _warmup(step, self.warmup)
        return self.factor ** ((step - self.warmup) // self.every)


@dataclass(frozen=True)
class WarmupCosine(Schedule):
    """Half a cosine from 1 at the end of the warm-up to floor / lr at step `steps`, warm-up included; then constant."""

    lr: float = 1e-4
    warmup: int = 4000
    steps: int = 200_000
    floor: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_floor(self, self.lr, self.floor)
        if self.steps <= self.warmup:
            self._refuse("more steps than warm-up", f"steps={self.steps} and warmup={self.warmup}")

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return _warmup(step, self.warmup)
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return _above_floor(0.5 + 0.5 * math.cos(math.pi * done), self.lr, self.floor)


@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """1 from the warm-up to the last `decay` steps, in which it falls to floor / lr at step `steps`; then constant.

    The shape of the fall is "sqrt", 1 - sqrt(done), which Haegele et al., https://arxiv.org/abs/2405.18392, found
    best with a fifth of the steps, or "linear", 1 - done. A run can be prolonged from any step before the fall.
    """

    lr: float = 1e-4
    warmup: int = 4000
    steps: int = 200_000
    decay: int = 40_000
    floor: float = 1e-6
    shape: Literal["sqrt", "linear"] = "sqrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_floor(self, self.lr, self.floor)
        if self.decay < 1 or self.steps < self.warmup + self.decay:
            self._refuse(
                "at least one step of decay, and steps >= warmup + decay",
                f"steps={self.steps}, warmup={self.warmup} and decay={self.decay}",
            )
        if self.shape not in ("sqrt", "linear"):
            self._refuse("a shape of 'sqrt' or 'linear'", repr(self.shape))

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return _warmup(step, self.warmup)
        done = min(1.0, max(0.0, (step - (self.steps - self.decay)) / self.decay))
        return _above_floor(1 - (math.sqrt(done) if self.shape == "sqrt" else done), self.lr, self.floor)


def _warmup(step: int, warmup: int) -> float:
    if step < 0:
        raise ValueError(f"expected a step of 0 or more, got {step}; steps are counted from 0")
    return (step + 1) / warmup if step < warmup else 1.0


def _above_floor(share: float, lr: float, floor: float) -> float:
    """`share` of the way from the floor up to 1; exact at both ends."""
    lowest = floor / lr
    return share + (1 - share) * lowest


def _check_floor(schedule: Schedule, lr: float, floor: float) -> None:
    if not 0 < lr < math.inf:
        schedule._refuse("the optimizer's learning rate as lr, above 0", str(lr))
    if not 0 <= floor <= lr:
        schedule._refuse("a floor from 0 to lr (both learning rates, not factors)", f"floor={floor} and lr={lr}")

"""When a stage has learnt what it can: three criteria, each with what it remembers of one stage.

    slowed    its weights move: how far they went in the last `patience` steps, by their norm, is below `threshold` of
              the farthest they ever went in as many
    below     the smoothed norm of its gradient has been below `threshold` of its own largest for `patience` steps
    settled   the smoothed norm of its gradient has stayed within `threshold` of where it was for `patience` steps

The norm of one mini-batch's gradient jumps by 7 to 24 % from step to step, so only smoothed ones are looked at. Even so
they say little: in training from scratch they come to rest, or rise again, while the loss still falls and the weights
still go far. docs/experiments.md has the curves. How far weights go follows the learning rate, the optimizer and the
gradients alike, and in the last part of a schedule it falls in every layer; so `slowed` is the default.

Movement is measured on some hundred weights of each stage, always the same: a copy of all would cost as much memory as
the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from ..ops.convert import merge

Criterion = Literal["slowed", "below", "settled"]
NUM_SAMPLED = 512  # weights of a stage; their movement is within a tenth of all weights' movement


@dataclass(frozen=True)
class Options:
    threshold: float
    patience: int
    smoothing: float


class Signs(Protocol):
    """What is known of one stage. It is fit for JSON."""

    def see(self, norm: float, weights: Callable[[], list[float]], options: Options) -> None:
        """One step: the gradient's norm, and a sample of the weights for who asks."""

    def are_calm(self, options: Options) -> bool: ...

    def start_anew(self) -> None:
        """The stage was thawed."""


@dataclass
class Slowed:
    age: int = 0  # steps since the sample was taken
    sample: list[float] | None = None
    farthest: float = 0.0
    last: float | None = None  # how far in the last `patience` steps

    def see(self, norm: float, weights: Callable[[], list[float]], options: Options) -> None:
        if self.sample is None:
            self.sample = weights()
        elif self.age + 1 < options.patience:
            self.age += 1
        else:
            then, self.sample, self.age = self.sample, weights(), 0
            self.last = _distance(then, self.sample)
            self.farthest = max(self.farthest, self.last)

    def are_calm(self, options: Options) -> bool:
        return self.last is not None and self.farthest > 0 and self.last < options.threshold * self.farthest

    def start_anew(self) -> None:
        self.age, self.sample, self.last = 0, None, None


@dataclass
class Below:
    mean: float | None = None
    largest: float = 0.0
    calm: int = 0

    def see(self, norm: float, weights: Callable[[], list[float]], options: Options) -> None:
        self.mean = smoothed(self.mean, norm, options.smoothing)
        self.largest = max(self.largest, self.mean)
        self.calm = self.calm + 1 if self.mean < options.threshold * self.largest else 0

    def are_calm(self, options: Options) -> bool:
        return self.calm >= options.patience

    def start_anew(self) -> None:
        self.calm = 0


@dataclass
class Settled:
    mean: float | None = None
    anchor: float | None = None  # where the mean was when the count began
    calm: int = 0

    def see(self, norm: float, weights: Callable[[], list[float]], options: Options) -> None:
        self.mean = smoothed(self.mean, norm, options.smoothing)
        if self.anchor is not None and abs(self.mean - self.anchor) <= options.threshold * self.anchor:
            self.calm += 1
        else:
            self.anchor, self.calm = self.mean, 0

    def are_calm(self, options: Options) -> bool:
        return self.calm >= options.patience

    def start_anew(self) -> None:
        self.mean, self.anchor, self.calm = None, None, 0


CRITERIA: dict[str, Callable[[], Signs]] = {"slowed": Slowed, "below": Below, "settled": Settled}
THRESHOLDS: dict[str, float] = {"slowed": 0.2, "below": 0.3, "settled": 0.05}
"""Where none is given."""


def smoothed(mean: float | None, value: float, smoothing: float) -> float:
    return value if mean is None else smoothing * mean + (1 - smoothing) * value


def _distance(then: list[float], now: list[float]) -> float:
    """By the norm of what it is now."""
    before, after = torch.tensor(then, dtype=torch.float64), torch.tensor(now, dtype=torch.float64)
    return float((after - before).norm() / after.norm().clamp_min(1e-30))


class Sampler:
    """Some weights of a stage, evenly spread. Of split weights (rewriting/split_weights.py) it reads both halves, as
    a step moves many of them by less than bf16 can tell."""

    def __init__(self, model: nn.Module, parameters: list[nn.Parameter]) -> None:
        self._lows: dict[nn.Parameter, Tensor] = {}
        for module in model.modules():
            for name, lo in module.__dict__.get("_split_lo", {}).items():
                self._lows[module._parameters[name]] = lo  # type: ignore[index]
        self._places: list[tuple[nn.Parameter, Tensor]] = []
        total = sum(p.numel() for p in parameters)
        chosen = torch.arange(min(total, NUM_SAMPLED), dtype=torch.int64) * total // min(total, NUM_SAMPLED)
        start = 0
        for p in parameters:
            inside = chosen[(chosen >= start) & (chosen < start + p.numel())] - start
            self._places.append((p, inside))
            start += p.numel()

    @torch.no_grad()
    def __call__(self) -> list[float]:
        values: list[float] = []
        for p, places in self._places:
            if len(places):
                picked, lo = _pick(p, places), self._lows.get(p)
                whole = lo is not None and p.dtype is torch.bfloat16 and lo.shape == p.shape
                picked = merge(picked, _pick(lo, places)) if whole else picked  # type: ignore[arg-type]
                values += picked.double().tolist()
        return values


def _pick(tensor: Tensor, places: Tensor) -> Tensor:
    """By index in the order of its dimensions, whatever its memory's is."""
    return tensor.detach()[torch.unravel_index(places.to(tensor.device), tensor.shape)].reshape(-1)  # one number, too

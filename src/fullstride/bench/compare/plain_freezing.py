"""Freezing, which torch lacks, as a good engineer writes it for stock PyTorch: settled layers stop training.

    slowed    in `patience` steps its weights moved less than `threshold` of the farthest they ever did in as many
    below     the smoothed norm of its gradient was below `threshold` of its largest for `patience` steps
    settled   the smoothed norm of its gradient stayed within `threshold` of where it was for `patience` steps

Layers freeze from the front, since backward can end early only there. The rules are those of optim/freezing.py, so both
sides of a comparison freeze the same layers at the same steps, but where rounding decides. The norms of gradients are
taken only where the criterion asks for them.
The process of stock PyTorch loads this file by its path: it must not import anything of Fullstride.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

_NUM_SAMPLED = 512  # weights of a stage whose movement is measured


class Slowed:
    def __init__(self, parameters: Sequence[nn.Parameter], threshold: float, patience: int, smoothing: float) -> None:
        self.threshold, self.patience, self.farthest = threshold, patience, 0.0
        total, start = sum(p.numel() for p in parameters), 0
        count = min(total, _NUM_SAMPLED)
        chosen = torch.arange(count) * total // count
        self.places: list[tuple[Tensor, Tensor]] = []
        for p in parameters:
            inside = (chosen >= start) & (chosen < start + p.numel())
            self.places.append((p, chosen[inside] - start))
            start += p.numel()
        self.start_anew()

    def start_anew(self) -> None:
        self.age, self.then, self.last = 0, torch.empty(0), math.inf

    def see(self, gradients: Sequence[Tensor]) -> None:
        self.age += 1
        if len(self.then) and self.age < self.patience:
            return
        now = torch.cat([p.detach().reshape(-1)[places] for p, places in self.places]).double()
        if len(self.then):
            self.last = ((now - self.then).norm() / now.norm().clamp_min(1e-30)).item()
            self.farthest = max(self.farthest, self.last)
        self.then, self.age = now, 0

    def is_calm(self) -> bool:
        return self.last < self.threshold * self.farthest


class Below:
    def __init__(self, parameters: Sequence[nn.Parameter], threshold: float, patience: int, smoothing: float) -> None:
        self.threshold, self.patience, self.smoothing = threshold, patience, smoothing
        self.mean = self.anchor = math.nan  # anchor: where the mean was when Settled began to count
        self.largest, self.calm = 0.0, 0

    def start_anew(self) -> None:
        self.calm = 0

    def see(self, gradients: Sequence[Tensor]) -> None:
        norm = nn.utils.get_total_norm(gradients).item()
        if math.isfinite(norm):
            self.mean = smoothed(self.mean, norm, self.smoothing)
            self.count()

    def count(self) -> None:
        self.largest = max(self.largest, self.mean)
        self.calm = self.calm + 1 if self.mean < self.threshold * self.largest else 0

    def is_calm(self) -> bool:
        return self.calm >= self.patience


class Settled(Below):
    def start_anew(self) -> None:
        self.mean, self.anchor, self.calm = math.nan, math.nan, 0

    def count(self) -> None:
        if abs(self.mean - self.anchor) <= self.threshold * self.anchor:
            self.calm += 1
        else:
            self.anchor, self.calm = self.mean, 0


class Freezer:
    """stages: the model's layers in forward order, one or more a stage: their names, those of the parameters that are
    theirs, and those of layers to detach, because they use a parameter of a later stage."""

    def __init__(
        self, model: nn.Module, stages: Sequence[dict[str, list[str]]], criterion: str, threshold: float, patience: int,
        smoothing: float, min_active: int, thaw_every: int | None, thaw_on_rise: float | None, compiled: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.stages, self.compiled = model, stages, compiled
        self.smoothing, self.min_active = smoothing, min_active
        self.thaw_every, self.thaw_on_rise = thaw_every, thaw_on_rise
        known = dict(model.named_parameters())
        self.parameters = [[known[name] for name in stage["parameters"]] for stage in stages]
        kind: Any = {"slowed": Slowed, "below": Below, "settled": Settled}[criterion]
        self.signs = [kind(own, threshold, patience, smoothing) for own in self.parameters]
        self.num_steps = self.num_frozen = 0
        self.mine: list[nn.Parameter] = []
        self.hooks: list[Any] = []
        self.loss, self.lowest = math.nan, math.inf

    def step(self, loss: float) -> None:
        """After the last backward of a step and before clipping."""
        self.num_steps += 1
        rose = self.follow(loss)
        due = self.thaw_every is not None and self.num_steps % self.thaw_every == 0
        if self.num_frozen and (rose or due):
            return self.thaw()
        for own, signs in list(zip(self.parameters, self.signs, strict=True))[self.num_frozen :]:
            gradients = [p.grad for p in own if p.grad is not None]
            if gradients:
                signs.see(gradients)
        while self.num_frozen < len(self.stages) - self.min_active and self.signs[self.num_frozen].is_calm():
            self.freeze_next()

    def follow(self, loss: float) -> bool:
        """Whether the smoothed loss is too far above its lowest since the first layer froze."""
        if self.thaw_on_rise is None or not math.isfinite(loss):
            return False
        self.loss = smoothed(self.loss, loss, self.smoothing)
        if not self.num_frozen:
            self.lowest = math.inf
            return False
        self.lowest = min(self.loss, self.lowest)
        return self.loss > self.lowest + self.thaw_on_rise * abs(self.lowest)

    def freeze_next(self) -> None:
        for p in self.parameters[self.num_frozen]:
            if p.requires_grad:
                p.requires_grad_(False)
                p.grad = None
                self.mine.append(p)
        for name in self.stages[self.num_frozen]["detach"]:
            self.hooks.append(self.model.get_submodule(name).register_forward_hook(_detach))
        self.num_frozen += 1
        self._changed()

    def thaw(self) -> None:
        for p in self.mine:
            p.requires_grad_(True)
        for hook in self.hooks:
            hook.remove()
        for signs in self.signs:
            signs.start_anew()
        self.mine, self.hooks, self.num_frozen = [], [], 0
        self._changed()

    def _changed(self) -> None:
        if self.compiled:
            torch.compiler.reset()  # what was compiled does not ask for hooks

    def report(self) -> SimpleNamespace:
        frozen = self.stages[: self.num_frozen]
        return SimpleNamespace(frozen_layers=[layer for stage in frozen for layer in stage["layers"]])


def smoothed(mean: float, value: float, smoothing: float) -> float:
    return value if math.isnan(mean) else smoothing * mean + (1 - smoothing) * value


def _detach(module: nn.Module, inputs: Any, output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else tuple(x.detach() for x in output)

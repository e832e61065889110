"""The optimizer, the schedule and the freezer that a config describes."""

from typing import Any

from torch import nn

from ..optim import SGD, Adam, AdamW, DynamicFreezer, Lamb, Lookahead
from ..optim.schedules import Constant, Schedule, WarmupCosine, WarmupStableDecay, WarmupStepDecay
from ..recipes.config import Config


def build_optimizer(config: Config, model: nn.Module) -> Any:
    wish = config.optimizer
    common: dict[str, Any] = {
        "lr": wish.lr, "weight_decay": wish.weight_decay,
        "state_precision": wish.state_precision, "clip": config.clip,
        "skip_nonfinite": True, "seed": config.seed,
    }  # fmt: skip
    moments: dict[str, Any] = {"betas": wish.betas, "eps": wish.eps}
    parameters = list(model.parameters())
    optimizer: AdamW | Adam | Lamb | SGD
    if wish.name == "adamw":
        optimizer = AdamW(parameters, **common, **moments)
    elif wish.name == "adam":
        optimizer = Adam(parameters, **common, **moments)
    elif wish.name == "lamb":
        optimizer = Lamb(parameters, **common, **moments)
    else:
        optimizer = SGD(parameters, **common, momentum=wish.momentum)
    return Lookahead(optimizer, wish.lookahead_alpha, wish.lookahead_k) if wish.lookahead else optimizer


def build_schedule(config: Config) -> Schedule:
    wish, lr, steps = config.schedule, config.optimizer.lr, config.steps
    warmup = int(wish.warmup * steps)
    if wish.name == "constant":
        return Constant(warmup)
    if wish.name == "cosine":
        return WarmupCosine(lr, warmup, steps, wish.floor)
    if wish.name == "step":
        return WarmupStepDecay(warmup, wish.every, wish.factor)
    decay = max(1, min(round(wish.decay * steps), steps - warmup))
    return WarmupStableDecay(lr, warmup, steps, decay, wish.floor)


def build_freezer(config: Config, model: nn.Module) -> DynamicFreezer | None:
    wish = config.freeze
    if not wish.enabled:
        return None
    return DynamicFreezer(
        model, wish.threshold, wish.patience, criterion=wish.criterion, smoothing=wish.smoothing,
        min_active=wish.min_active, thaw_every=wish.thaw_every, thaw_on_rise=wish.thaw_on_rise,
    )  # fmt: skip

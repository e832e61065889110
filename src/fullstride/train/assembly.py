"""The optimizer, the schedule and the freezer that a config describes."""

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..distributed.world import World
from ..optim import SGD, Adam, AdamW, DynamicFreezer, Lamb, Lookahead
from ..optim.scaling import LossScaler
from ..optim.schedules import Constant, Schedule, WarmupCosine, WarmupStableDecay, WarmupStepDecay
from ..recipes.config import Config, expect
from ..recipes.length import Length
from .progress.terminal import COMMON

logger = logging.getLogger(__name__)


def build_optimizer(config: Config, model: nn.Module, world: World | None = None) -> Any:
    """Of several processes: one whose states are shared out, if that is asked for."""
    if config.distributed.shard_optimizer and world is not None and not world.is_alone:
        from ..distributed.sharding import Sharded  # which loads much of torch that nobody else needs

        return Sharded(model, lambda parameters: _optimizer_of(config, parameters), world)
    return _optimizer_of(config, list(model.parameters()))


def _optimizer_of(config: Config, parameters: Sequence[nn.Parameter]) -> Any:
    wish = config.optimizer
    common: dict[str, Any] = {
        "lr": wish.lr, "weight_decay": wish.weight_decay,
        "state_precision": wish.state_precision, "clip": config.clip,
        "skip_nonfinite": True, "seed": config.seed,
    }  # fmt: skip
    moments: dict[str, Any] = {"betas": wish.betas, "eps": wish.eps}
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


def build_schedule(config: Config, length: Length) -> Schedule:
    """ValueError for steps that do not fit into the run.

    Where they need not, as nothing follows that would be cut off, a warm-up longer than the run is no error: a short
    trial of a long run has one. mind_warmup() says it.
    """
    wish, lr, steps = config.schedule, config.optimizer.lr, length.steps
    warmup = length.of(wish.warmup)
    if wish.name == "constant":
        return Constant(warmup)
    if wish.name == "step":
        return WarmupStepDecay(warmup, max(1, length.of(wish.every)), wish.factor)
    if wish.name == "cosine":
        end = steps if wish.over is None else max(1, length.of(wish.over))
        expect(warmup < end, "schedule.warmup", f"fewer steps than the {end} of cosine", warmup)
        return WarmupCosine(lr, warmup, end, wish.floor)
    expect(warmup < steps, "schedule.warmup", f"fewer steps than the {steps} of the run", warmup)
    decay = length.of(wish.decay)
    if wish.decay < 1:
        decay = max(1, min(decay, steps - warmup))
    expect(decay <= steps - warmup, "schedule.decay", f"at most {steps - warmup} steps, which follow warm-up", decay)
    return WarmupStableDecay(lr, warmup, steps, decay, wish.floor)


def mind_warmup(config: Config, length: Length) -> None:
    """Says it if the run ends before its learning rate is the one that was asked for."""
    warmup, steps = length.of(config.schedule.warmup), length.steps
    if warmup > steps:
        logger.warning(
            "schedule.warmup: %d steps are more than the %d of the run, which ends at %.3g of optimizer.lr",
            warmup, steps, steps / warmup, extra=COMMON,
        )  # fmt: skip


def mind_islands(config: Config, length: Length) -> None:
    """Says it if islands meet so seldom that their momentum is longer than the run."""
    wish = config.distributed
    if not wish.local_steps:
        return
    meetings, wanted = length.steps // wish.local_steps, round(2 / (1 - wish.outer_momentum))
    if meetings < wanted:
        logger.warning(
            "distributed.local_steps: %d steps leave %d meetings of the islands, and outer_momentum %g wants %d or"
            " more: lower one of them",
            wish.local_steps, meetings, wish.outer_momentum, wanted, extra=COMMON,
        )  # fmt: skip


def build_scaler(config: Config, precision: str) -> LossScaler | None:
    """None where nothing is scaled. "auto" may come to fp16, if the environment says so."""
    if precision not in ("auto", "fp16"):
        return None
    wish = config.loss_scale
    return LossScaler(wish.start, wish.interval, wish.growth, wish.backoff)


def build_freezer(config: Config, model: nn.Module) -> DynamicFreezer | None:
    wish = config.freeze
    if not wish.enabled:
        return None
    return DynamicFreezer(
        model, wish.threshold, wish.patience, criterion=wish.criterion, smoothing=wish.smoothing,
        min_active=wish.min_active, thaw_every=wish.thaw_every, thaw_on_rise=wish.thaw_on_rise,
    )  # fmt: skip

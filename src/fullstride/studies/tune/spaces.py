"""Hyper-parameters that can be searched for: each around the recipe's own value.

    lr             from a tenth of it to ten times, logarithmic; the schedule's floor keeps its share of it
    weight_decay   none, or the same range; around 0.01 where the recipe has none
    warmup         from 0 to 0.2 of the run
    batch          a quarter to four times of the effective batch, by powers of two

The recipe's own values are a point of the space. This file imports neither torch nor optuna.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...recipes.config import OPTIMIZERS, Config
from ...recipes.strict import unknown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

NAMES = ("lr", "weight_decay", "warmup", "batch")
_FACTOR = 10.0  # of lr and weight_decay, up and down
_MOST_WARMUP = 0.2
_POWERS = 2  # of two, up and down
_DIGITS = 3  # more than that nobody can tell from the noise
_IN_STEPS = {"cosine": ("warmup", "over"), "step": ("warmup", "every"), "stable": ("warmup", "decay")}

C = TypeVar("C", bound=Config)


def parse(text: str) -> tuple[str, ...]:
    """lr,batch -> its names, in the order of NAMES. ValueError for others."""
    words = [word.strip().replace("-", "_") for word in text.split(",")]
    for word in words:
        if word not in NAMES:
            raise ValueError(unknown(word, list(NAMES), kind="hyper-parameter"))
    return tuple(name for name in NAMES if name in words)


def own(names: Sequence[str], config: Config, full_steps: int) -> dict[str, Any]:
    """The parameters that stand for the recipe's own values."""
    decay = config.optimizer.weight_decay
    every: dict[str, dict[str, Any]] = {
        "lr": {"lr": config.optimizer.lr},
        "weight_decay": {"decays": decay > 0, "weight_decay": _decay(config)},
        "warmup": {"warmup": _warmup(config, full_steps)},
        "batch": {"batch": 0},
    }
    return {name: value for key in names for name, value in every[key].items()}


def space(names: Sequence[str], config: Config, full_steps: int) -> "dict[str, BaseDistribution]":
    """By parameter, for optuna."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    lr, decay = config.optimizer.lr, _decay(config)
    smallest = -min(_POWERS, _twos(config.micro_batch * config.accumulate))
    every: dict[str, dict[str, BaseDistribution]] = {
        "lr": {"lr": FloatDistribution(lr / _FACTOR, lr * _FACTOR, log=True)},
        "weight_decay": {
            "decays": CategoricalDistribution([True, False]),
            "weight_decay": FloatDistribution(decay / _FACTOR, decay * _FACTOR, log=True),
        },
        "warmup": {"warmup": FloatDistribution(0.0, max(_MOST_WARMUP, _warmup(config, full_steps)))},
        "batch": {"batch": IntDistribution(smallest, _POWERS)},
    }
    return {name: value for key in names for name, value in every[key].items()}


def applied(config: C, parameters: dict[str, Any], micro_batch_matters: bool) -> C:
    """The config with these values, rounded; a batch of another size takes as many samples in other steps."""
    if "lr" in parameters:
        lr = _rounded(parameters["lr"])
        floor = _rounded(config.schedule.floor * lr / config.optimizer.lr)
        config = config.replace(optimizer={"lr": lr}, schedule={"floor": floor})
    if "decays" in parameters:
        decay = _rounded(parameters["weight_decay"]) if parameters["decays"] else 0.0
        config = config.replace(optimizer={"weight_decay": decay})
    if "warmup" in parameters:
        config = config.replace(schedule={"warmup": round(parameters["warmup"], _DIGITS)})
    if "batch" in parameters:
        config = _with_batch(config, parameters["batch"], micro_batch_matters)
    return config


def values(names: Sequence[str], config: Config) -> dict[str, Any]:
    """What a config has under these names, for people."""
    every = {
        "lr": config.optimizer.lr, "weight_decay": config.optimizer.weight_decay, "warmup": config.schedule.warmup,
        "batch": config.micro_batch * config.accumulate,
    }  # fmt: skip
    return {name: every[name] for name in names}


def _with_batch(config: C, power: int, micro_batch_matters: bool) -> C:
    """micro_batch is never larger than it was, so memory is not; but where it decides what is learnt, it is."""
    whole = config.micro_batch * config.accumulate
    new = whole * 2**power if power >= 0 else whole // 2**-power
    if micro_batch_matters and new % config.accumulate == 0:
        micro_batch = new // config.accumulate
    else:
        micro_batch = max(d for d in range(1, min(config.micro_batch, new) + 1) if new % d == 0)
    factor = whole / new
    schedule = {
        name: max(1, round(value * factor))
        for name in _IN_STEPS.get(config.schedule.name, ("warmup",))
        if (value := getattr(config.schedule, name)) is not None and value >= 1
    }
    steps = {} if config.steps is None else {"steps": max(1, round(config.steps * factor))}
    return config.replace(micro_batch=micro_batch, accumulate=new // micro_batch, schedule=schedule, **steps)


def _decay(config: Config) -> float:
    return config.optimizer.weight_decay or OPTIMIZERS["adamw"]["weight_decay"]


def _warmup(config: Config, full_steps: int) -> float:
    warmup = config.schedule.warmup
    return min(0.99, warmup / full_steps) if warmup >= 1 else float(warmup)


def _twos(number: int) -> int:
    """How often 2 divides it."""
    return (number & -number).bit_length() - 1


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

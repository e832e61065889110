"""Optimizers with one kernel call a step, gradients summed in fp32, loss scaling, schedules and freezing."""

from ._base import Optimizer
from .adamw import Adam, AdamW
from .freezing import DynamicFreezer, FreezeReport
from .lamb import Lamb
from .lookahead import Lookahead
from .main_gradients import drop_main_gradients, keep_main_gradients
from .scaling import LossScaler, scale_gradient
from .schedules import Constant, Schedule, WarmupCosine, WarmupStableDecay, WarmupStepDecay
from .sgd import SGD
from .torch_optimizers import from_torch, to_torch

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "DynamicFreezer",
    "FreezeReport",
    "Lamb",
    "Lookahead",
    "LossScaler",
    "Optimizer",
    "Schedule",
    "WarmupCosine",
    "WarmupStableDecay",
    "WarmupStepDecay",
    "drop_main_gradients",
    "from_torch",
    "keep_main_gradients",
    "scale_gradient",
    "to_torch",
]

"""Config and its sections where recipes of one's own import them from. They live in recipes/config.py."""

from ..recipes.config import Checkpoints, Config, Evaluation, Freeze, Logging, Optimizer, Schedule, expect

__all__ = ["Checkpoints", "Config", "Evaluation", "Freeze", "Logging", "Optimizer", "Schedule", "expect"]

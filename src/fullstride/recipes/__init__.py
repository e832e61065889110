"""The recipes: functions that return a config. `fullstride train NAME` trains one.

    config.py, task.py          what every recipe has: what a run is told; the model, the data and the loss
    mlp.py, mlp_task.py         one recipe each, the config apart from what loads torch
    llama.py, llama_task.py
    llama_files.py           files that a llama may start from, those of `fullstride export` among them
    catalogue.py                the recipes by name
    strict.py, config_files.py  values of a config checked against its fields; configs as YAML
"""

from .catalogue import NAMES, describe, get
from .config import Config
from .llama import llama, llama_char
from .mlp import mlp, mlp_mnist

__all__ = ["NAMES", "Config", "describe", "get", "llama", "llama_char", "mlp", "mlp_mnist"]

"""The recipes: functions that return a config. `fullstride train NAME` trains one."""

from .catalogue import NAMES, describe, get
from .clip import clip, clip_small
from .config import Config
from .fastspeech2 import fastspeech2, fastspeech2_quick
from .llama import llama, llama_char
from .mlp import mlp, mlp_mnist, mlp_seven

__all__ = [
    "NAMES",
    "Config",
    "clip",
    "clip_small",
    "describe",
    "fastspeech2",
    "fastspeech2_quick",
    "get",
    "llama",
    "llama_char",
    "mlp",
    "mlp_mnist",
    "mlp_seven",
]

"""The recipes: functions that return a config. `fullstride train NAME` trains one."""

from collections.abc import Callable

from ..train.config import Config
from ..train.config_files import unknown
from .llama import llama, llama_char
from .mlp import mlp, mlp_mnist

_RECIPES: dict[str, Callable[[], Config]] = {
    "mlp": mlp, "mlp-mnist": mlp_mnist, "llama": llama, "llama-char": llama_char,
}  # fmt: skip
NAMES = tuple(_RECIPES)


def get(name: str) -> Callable[[], Config]:
    if name not in _RECIPES:
        raise ValueError(unknown(name, list(NAMES), kind="recipe"))
    return _RECIPES[name]


def describe(name: str) -> str:
    """One line."""
    return (get(name).__doc__ or "").strip().splitlines()[0]

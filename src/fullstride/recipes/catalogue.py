"""The recipes by name: what `fullstride train NAME` and the config of a run folder mean by it."""

from collections.abc import Callable

from .clip import clip, clip_small
from .config import Config
from .fastspeech2 import fastspeech2, fastspeech2_quick
from .llama import llama, llama_char
from .mlp import mlp, mlp_mnist, mlp_seven
from .strict import unknown

_RECIPES: dict[str, Callable[[], Config]] = {
    "mlp": mlp, "mlp-mnist": mlp_mnist, "mlp-seven": mlp_seven, "llama": llama, "llama-char": llama_char,
    "fastspeech2": fastspeech2, "fastspeech2-quick": fastspeech2_quick, "clip": clip, "clip-small": clip_small,
}  # fmt: skip
NAMES = tuple(_RECIPES)


def get(name: str) -> Callable[[], Config]:
    if name == "fit":
        raise ValueError("this run is of fullstride.fit() in Python: go on there, by fit(..., run=..., resume=True)")
    if name not in _RECIPES:
        raise ValueError(unknown(name, list(NAMES), kind="recipe"))
    return _RECIPES[name]


def describe(name: str) -> str:
    """One line."""
    return (get(name).__doc__ or "").strip().splitlines()[0]

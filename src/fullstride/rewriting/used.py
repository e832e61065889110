"""Which mechanisms and parts have done something for a model: of the others nothing is lost if they are left out."""

from collections.abc import Iterable

import torch
from torch import nn

from .. import runtime
from ..ops.products import SHAPES, backend
from .function_mode import NAMES, PARTS_OF
from .order import Outcome
from .prepared_forward import Setting

_BY_NAME = {NAMES[func]: part for func, part in PARTS_OF.items()}


def functions_used(caught: Iterable[str]) -> frozenset[str]:
    """The parts of functions that were answered, by the names that explain() shows."""
    return frozenset(_BY_NAME[name] for name in caught if name in _BY_NAME)


def used(model: nn.Module, outcomes: Iterable[Outcome], setting: Setting) -> frozenset[str]:
    """Names of mechanisms.MECHANISMS and PARTS, but for optimizer and threads, of which others know."""
    done = [outcome for outcome in outcomes if outcome.done]
    names = {outcome.mechanism for outcome in done} | {part for outcome in done for part in outcome.parts}
    names |= functions_used(setting.caught) | ({"function_mode"} if setting.caught else set())
    if names & {"linear", "lazy_logits", "activations", "convolutions"} and _are_chosen(setting.dtype):
        names.add("products")
    if names >= {"lazy_logits", "embedding"} and _has_tied_weights(model):
        names.add("tied_gradients")
    if runtime.current().overlaps:
        names.add("overlap")
    return frozenset(names)


def _are_chosen(dtype: torch.dtype | None) -> bool:
    """Whether somebody else than torch multiplies."""
    return any(backend(dtype or torch.float32, shape) != "torch" for shape in SHAPES)


def _has_tied_weights(model: nn.Module) -> bool:
    every = list(model.named_parameters(remove_duplicate=False))
    return len(every) > len(list(model.parameters()))

"""Ordinary modules of torch.nn into fast ones, and back.

A module keeps its object, parameters, buffers, hooks and keys: only its class changes, to a subclass of the one it had,
so isinstance still holds. Only exact classes are known; a subclass may do anything in its forward and is left alone.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..nn import (
    activation,
    conv1d,
    conv2d,
    cross_entropy,
    dropout,
    embedding,
    layer_norm,
    multihead_attention,
    rms_norm,
)
from ..nn.linear import Linear
from .mechanisms import Answer


@dataclass(frozen=True)
class Rule:
    part: str  # of mechanisms.PARTS
    fast: type[nn.Module]
    why_not: Callable[[Any], str | None] = lambda module: None


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule("linear", Linear),
    nn.Conv1d: Rule("convolutions", conv1d.Conv1d, conv1d.why_not),
    nn.Conv2d: Rule("convolutions", conv2d.Conv2d, conv2d.why_not),
    nn.LayerNorm: Rule("norms", layer_norm.LayerNorm, layer_norm.why_not),
    nn.RMSNorm: Rule("norms", rms_norm.RMSNorm, rms_norm.why_not),
    nn.Embedding: Rule("embedding", embedding.Embedding, embedding.why_not),
    nn.GELU: Rule("activations", activation.GELU, activation.why_not),
    nn.SiLU: Rule("activations", activation.SiLU, activation.why_not),
    nn.Dropout: Rule("dropout", dropout.Dropout, dropout.why_not),
    nn.CrossEntropyLoss: Rule("loss", cross_entropy.CrossEntropyLoss, cross_entropy.why_not),
    nn.MultiheadAttention: Rule("attention", multihead_attention.MultiheadAttention, multihead_attention.why_not),
}
ORDINARY = {rule.fast: ordinary for ordinary, rule in RULES.items()}


def replace(module: nn.Module, without: Collection[str] = ()) -> Answer:
    """By its class; empty for a class without a rule, and for one of the parts that are left out."""
    rule = RULES.get(type(module))
    if rule is None:
        for ordinary in RULES:
            if isinstance(module, ordinary):
                reason = f"a subclass of {ordinary.__name__} may compute something else"
                return Answer(left=_changes_parameters(module) or reason)
        return Answer()
    if rule.part in without:
        return Answer()
    why_not = foreign(module) or rule.why_not(module)
    if why_not:
        return Answer(left=why_not)
    module.__class__ = rule.fast
    return Answer(f"fullstride.nn.{rule.fast.__name__}", parts=(rule.part,))


def put_back(module: nn.Module) -> None:
    ordinary = ORDINARY.get(type(module))
    if ordinary is not None:
        module.__class__ = ordinary


def foreign(module: nn.Module) -> str | None:
    """Why the class of a module does not tell what it computes; None if it does."""
    return "its forward was replaced by somebody else" if "forward" in module.__dict__ else _changes_parameters(module)


def _changes_parameters(module: nn.Module) -> str | None:
    """Parametrizations and the older weight_norm, spectral_norm and pruning make the weight anew in each forward."""
    if hasattr(module, "parametrizations"):
        return "its weight is parametrized"
    own = {name for name, value in module._parameters.items() if value is not None}
    if any(name + suffix in own for name in ("weight", "bias") for suffix in ("_orig", "_g", "_v")):
        return "its weight is computed by a hook"
    return None

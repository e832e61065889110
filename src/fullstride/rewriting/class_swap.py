"""Ordinary modules into fast ones, and back.

A module keeps its object, parameters, buffers, hooks and keys: only its class changes, to a subclass of the one it had,
so isinstance still holds. Only exact classes are known; a subclass may do anything in its forward and is left alone.
Modules of other libraries that compute a known formula get another forward instead of another class.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..nn import activation, cross_entropy, dropout, embedding, layer_norm, multihead_attention, rms_norm
from ..nn.linear import Linear
from .fusion import fuse
from .lazy_logits import LazyHead, is_large
from .probes import rms_norm as rms_norm_probe
from .probes import rotary


@dataclass(frozen=True)
class Rule:
    fast: type[nn.Module]
    why_not: Callable[[Any], str | None] = lambda module: None


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(Linear),
    nn.LayerNorm: Rule(layer_norm.LayerNorm, layer_norm.why_not),
    nn.RMSNorm: Rule(rms_norm.RMSNorm, rms_norm.why_not),
    nn.Embedding: Rule(embedding.Embedding, embedding.why_not),
    nn.GELU: Rule(activation.GELU, activation.why_not),
    nn.SiLU: Rule(activation.SiLU, activation.why_not),
    nn.Dropout: Rule(dropout.Dropout, dropout.why_not),
    nn.CrossEntropyLoss: Rule(cross_entropy.CrossEntropyLoss, cross_entropy.why_not),
    nn.MultiheadAttention: Rule(multihead_attention.MultiheadAttention, multihead_attention.why_not),
}
ORDINARY = {rule.fast: ordinary for ordinary, rule in RULES.items()} | {LazyHead: nn.Linear}


@dataclass(frozen=True)
class Outcome:
    """What became of one module. `done` says what was put in its place, `left` why nothing was; one is empty."""

    name: str
    kind: str
    done: str = ""
    left: str = ""


def swap(model: nn.Module, without: Collection[str] = frozenset()) -> list[Outcome]:
    """Makes every module fast that is known. One outcome a module that was, or that has a reason why not.

    Children before parents, which may fuse what their children were found to be.
    without: mechanisms to leave out. "lazy_logits": a large head is a Linear like any other.
    """
    outcomes = []
    for name, module in reversed(list(model.named_modules())):
        kind = type(module).__name__
        done, left = _swap_class(module, without)
        if not done and not left:
            done, left = _swap_forward(module)
        if done or left:
            outcomes.append(Outcome(name or "(the model)", kind, done, left))
    return outcomes[::-1]


def unswap(model: nn.Module) -> None:
    for module in model.modules():
        fuse.unfuse(module)
        if isinstance(module.__dict__.get("forward"), (rms_norm_probe.NormForward, rotary.RotaryForward)):
            del module.forward
        ordinary = ORDINARY.get(type(module))
        if ordinary is not None:
            module.__class__ = ordinary


def _swap_class(module: nn.Module, without: Collection[str]) -> tuple[str, str]:
    """(done, left) by its class; both empty for a class without a rule."""
    rule = RULES.get(type(module))
    if rule is None:
        for ordinary in RULES:
            if isinstance(module, ordinary):
                reason = f"a subclass of {ordinary.__name__} may compute something else"
                return "", _changes_parameters(module) or reason
        return "", ""
    if "forward" in module.__dict__:
        return "", "its forward was replaced by somebody else"
    why_not = _changes_parameters(module) or rule.why_not(module)
    if why_not:
        return "", why_not
    if isinstance(module, nn.Linear) and is_large(module) and "lazy_logits" not in without:
        module.__class__ = LazyHead
        return "fullstride.rewriting.LazyHead: logits only if somebody looks", ""
    module.__class__ = rule.fast
    return f"fullstride.nn.{rule.fast.__name__}", ""


def _swap_forward(module: nn.Module) -> tuple[str, str]:
    """(done, left) by what it computes."""
    if rms_norm_probe.looks_like(module):
        if "forward" in module.__dict__ or not rms_norm_probe.computes_rms_norm(module):
            return "", "computes something else than RMSNorm"
        module.forward = rms_norm_probe.NormForward(module)
        return "ops.rms_norm", ""
    if rotary.looks_like(module):
        way = None if "forward" in module.__dict__ else rotary.way_of(module)
        if way is None:
            return "", rotary.NOT_ROTARY
        module.forward = rotary.RotaryForward(module, way)
        return "ops.rope, interleaved" if way.interleaved else "ops.rope", ""
    fused = fuse.fuse(module)
    if isinstance(fused, fuse.Fused):
        return fused.what, ""
    return "", fused.reason if fused is not None else ""


def _changes_parameters(module: nn.Module) -> str | None:
    """Parametrizations and the older weight_norm, spectral_norm and pruning make the weight anew in each forward."""
    if hasattr(module, "parametrizations"):
        return "its weight is parametrized"
    own = {name for name, value in module._parameters.items() if value is not None}
    if any(name + suffix in own for name in ("weight", "bias") for suffix in ("_orig", "_g", "_v")):
        return "its weight is computed by a hook"
    return None

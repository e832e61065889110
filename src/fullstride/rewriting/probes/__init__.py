"""Modules of other people that compute a formula we know: found by running them, and given our forward.

One file a formula, each with looks_like(), which is cheap, and a probe that proves it by numbers.
"""

from collections.abc import Collection

from torch import nn

from ..mechanisms import Answer
from . import contrastive, rms_norm, rotary


def replace(module: nn.Module, without: Collection[str] = ()) -> Answer:
    """Empty for a module that looks like nothing we know, or like a part that is left out."""
    for part, looks_like, put_in in _KNOWN:
        if part not in without and looks_like(module):
            return put_in(module)._replace(parts=(part,))
    return Answer()


def _put_in_norm(module: nn.Module) -> Answer:
    if "forward" in module.__dict__ or not rms_norm.computes_rms_norm(module):
        return Answer(left="computes something else than RMSNorm")
    module.forward = rms_norm.NormForward(module)
    return Answer("ops.rms_norm")


def _put_in_rotary(module: nn.Module) -> Answer:
    way = None if "forward" in module.__dict__ else rotary.way_of(module)
    if way is None:
        return Answer(left=rotary.NOT_ROTARY)
    module.forward = rotary.RotaryForward(module, way)
    return Answer("ops.rope, interleaved" if way.interleaved else "ops.rope")


def _put_in_contrastive(module: nn.Module) -> Answer:
    texts = None if "forward" in module.__dict__ else contrastive.texts_of(module)
    if texts is None:
        return Answer(left=contrastive.NOT_CONTRASTIVE)
    module.forward = contrastive.ContrastiveForward(module, texts)
    return Answer("ops.contrastive_loss")


_KNOWN = (
    ("norms", rms_norm.looks_like, _put_in_norm),
    ("rotary", rotary.looks_like, _put_in_rotary),
    ("loss", contrastive.looks_like, _put_in_contrastive),
)


def put_back(module: nn.Module) -> None:
    ours = (rms_norm.NormForward, rotary.RotaryForward, contrastive.ContrastiveForward)
    if isinstance(module.__dict__.get("forward"), ours):
        del module.forward

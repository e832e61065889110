"""Modules of other people that compute a formula we know: found by running them, and given our forward.

One file a formula, each with looks_like(), which is cheap, and a probe that proves it by numbers.
"""

from torch import nn

from . import contrastive, rms_norm, rotary


def replace(module: nn.Module) -> tuple[str, str]:
    """(done, left); both empty for a module that looks like nothing we know."""
    if rms_norm.looks_like(module):
        if "forward" in module.__dict__ or not rms_norm.computes_rms_norm(module):
            return "", "computes something else than RMSNorm"
        module.forward = rms_norm.NormForward(module)
        return "ops.rms_norm", ""
    if rotary.looks_like(module):
        way = None if "forward" in module.__dict__ else rotary.way_of(module)
        if way is None:
            return "", rotary.NOT_ROTARY
        module.forward = rotary.RotaryForward(module, way)
        return "ops.rope, interleaved" if way.interleaved else "ops.rope", ""
    if contrastive.looks_like(module):
        texts = None if "forward" in module.__dict__ else contrastive.texts_of(module)
        if texts is None:
            return "", contrastive.NOT_CONTRASTIVE
        module.forward = contrastive.ContrastiveForward(module, texts)
        return "ops.contrastive_loss", ""
    return "", ""


def put_back(module: nn.Module) -> None:
    ours = (rms_norm.NormForward, rotary.RotaryForward, contrastive.ContrastiveForward)
    if isinstance(module.__dict__.get("forward"), ours):
        del module.forward

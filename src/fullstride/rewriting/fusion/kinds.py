"""What a module is to fusion (linear layer, convolution, norm, activation), and whether its call is but its formula."""

import torch.nn.modules.module as module_globals
from torch import Tensor, nn

from ...nn import conv1d
from ..probes.rms_norm import NormForward

TRANSFORMERS_ACTIVATIONS = {
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "SiLUActivation": "silu",
}
"""Classes of transformers.activations with the names of ops/_activations.py. Some spell the formula out in Python, one
operation after the other; the value is the same to rounding."""

PLAIN = (Tensor, nn.Parameter)  # other classes of tensors may compute as they like
_OURS = "fullstride."
_WHEN = ("forward", "forward_pre", "backward", "backward_pre")
_GLOBAL_HOOKS = tuple(getattr(module_globals, f"_global_{when}_hooks") for when in _WHEN)


def is_linear(module: object) -> bool:
    """Whether it computes F.linear(x, weight, bias): nn.Linear or our form of it, not a subclass of somebody's own."""
    if not isinstance(module, nn.Linear) or _stock_type(module) is not nn.Linear:
        return False
    return "weight" in module._parameters and "bias" in module._parameters  # pruning replaces them by tensors


def is_conv1d(module: object) -> bool:
    """Whether it is a convolution that ops.conv1d computes: nn.Conv1d or our form of it, of stride 1 and so on."""
    if not isinstance(module, nn.Conv1d) or _stock_type(module) is not nn.Conv1d or conv1d.why_not(module):
        return False
    return "weight" in module._parameters and "bias" in module._parameters


def takes_activation(module: object) -> bool:
    """Whether it is computed by an op that goes on with the activation."""
    return is_linear(module) or is_conv1d(module)


def norm_of(module: object) -> str | None:
    """"RMSNorm" or "LayerNorm" if it is one over the last dimension, for residual_norm.py; else None."""
    if not isinstance(module, nn.Module):
        return None
    if isinstance(module, (nn.RMSNorm, nn.LayerNorm)):
        kind = _stock_type(module)
        is_known = kind in (nn.RMSNorm, nn.LayerNorm) and {"weight", "bias"} >= module._parameters.keys() >= {"weight"}
        return kind.__name__ if is_known and len(module.normalized_shape) == 1 else None
    forward = module.__dict__.get("forward")
    return "RMSNorm" if isinstance(getattr(forward, "inner", forward), NormForward) else None


def activation_of(module: object) -> str | None:
    """Its name in ops/_activations.py; None when it is no activation that ops know."""
    kind = _stock_type(module)
    if kind is nn.ReLU:
        return "relu"
    if kind is nn.SiLU:
        return "silu"
    if isinstance(module, nn.GELU) and kind is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(module.approximate)
    if kind.__module__ == "transformers.activations":
        return TRANSFORMERS_ACTIVATIONS.get(kind.__name__)
    return None


def is_bare(module: nn.Module) -> bool:
    """Whether nobody would notice that the module is not called: no hook of its own and no foreign forward."""
    forward = module.__dict__.get("forward")
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or (forward is not None and not type(forward).__module__.startswith(_OURS))
    )


def has_global_hooks() -> bool:
    """Whether somebody watches every module, as torch's counters of operations do."""
    return any(_GLOBAL_HOOKS)


def _stock_type(module: object) -> type:
    """The class that prepare found: ours subclass exactly one of torch's."""
    kind = type(module)
    return kind.__mro__[1] if kind.__module__.startswith(_OURS) else kind

"""RMSNorm of every class that computes it, by ops.rms_norm.

Hugging Face has some three hundred classes named ...RMSNorm and users write their own. They are recognised by what they
do: a module with one weight vector and an eps is run on a probe, and if the result is that of the formula, its forward
is replaced. Gemma's, which scales by 1 + weight, fails the probe and is left alone.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...nn.rms_norm import eps_of
from ...ops.rms_norm import rms_norm, rms_norm_reference


class NormForward:
    """Stands in for the forward of another RMSNorm class."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, hidden_states: Tensor) -> Tensor:
        module: Any = self.module
        return rms_norm(hidden_states, module.weight, eps_of(module))


def looks_like(module: nn.Module) -> bool:
    """Cheap: the name of the class and what it holds."""
    return (
        "RMSNorm" in type(module).__name__
        and [name for name, _ in module.named_parameters()] == ["weight"]
        and isinstance(module.weight, Tensor)
        and module.weight.dim() == 1
        and not list(module.children())
        and eps_of(module) is not None
    )


@torch.no_grad()
def computes_rms_norm(module: nn.Module) -> bool:
    """Whether a copy with a random weight gives what the formula gives, for rows large and small against eps."""
    generator = torch.Generator().manual_seed(0)
    assert isinstance(module.weight, Tensor)
    width = module.weight.shape[0]
    weight = torch.randn(width, generator=generator, dtype=torch.float32)
    double = copy.copy(module)
    double._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
    double.__dict__.pop("forward", None)
    x = torch.randn(3, width, generator=generator, dtype=torch.float32)
    x[1] *= eps_of(module) ** 0.5
    try:
        y = double(x)
    except Exception:  # a probe of unknown code: whatever it raises, it is not what we replace
        return False
    expected = rms_norm_reference(x, weight, eps_of(module))[0]
    return isinstance(y, Tensor) and y.shape == expected.shape and torch.allclose(y, expected, rtol=1e-4, atol=1e-6)

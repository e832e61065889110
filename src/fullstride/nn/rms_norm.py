"""torch.nn.RMSNorm over one dimension, by ops.rms_norm."""

from typing import Any

import torch
from torch import Tensor, nn

from ..ops.rms_norm import rms_norm

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon")


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps_for(self, x.dtype))


def why_not(module: nn.RMSNorm) -> str | None:
    if len(module.normalized_shape) != 1:
        return f"normalises over {len(module.normalized_shape)} dimensions; the kernel takes one"
    return None


def eps_of(module: nn.Module) -> Any:
    for name in _EPS_NAMES:
        eps = getattr(module, name, None)
        if isinstance(eps, float):
            return eps
    return None


def eps_for(module: nn.Module, dtype: torch.dtype) -> float:
    """Of torch's class, where None means that of the dtype, or of another one."""
    eps: float | None = module.eps if isinstance(module, nn.RMSNorm) else eps_of(module)
    return torch.finfo(dtype).eps if eps is None else eps

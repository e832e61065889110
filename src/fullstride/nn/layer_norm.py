"""torch.nn.LayerNorm over one dimension, by ops.layer_norm."""

import torch
from torch import Tensor

from ..ops.layer_norm import layer_norm


class LayerNorm(torch.nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)


def why_not(module: torch.nn.LayerNorm) -> str | None:
    if len(module.normalized_shape) != 1:
        return f"normalises over {len(module.normalized_shape)} dimensions; the kernel takes one"
    return None

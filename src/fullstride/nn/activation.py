"""torch.nn.GELU and torch.nn.SiLU where no Linear stands before them to take them in."""

import torch
from torch import Tensor

from ..ops.bias_act import bias_act


class GELU(torch.nn.GELU):
    def forward(self, input: Tensor) -> Tensor:
        return bias_act(input, None, "gelu_tanh" if self.approximate == "tanh" else "gelu")


class SiLU(torch.nn.SiLU):
    def forward(self, input: Tensor) -> Tensor:
        return bias_act(input, None, "silu")


def why_not(module: torch.nn.Module) -> str | None:
    return "works in place" if getattr(module, "inplace", False) else None

"""torch.nn.Dropout by ops.dropout: the same distribution, other elements; torch.manual_seed governs both."""

import torch
from torch import Tensor

from ..ops.dropout import dropout


class Dropout(torch.nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, training=self.training)


def why_not(module: torch.nn.Dropout) -> str | None:
    return "works in place" if module.inplace else None

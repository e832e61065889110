"""torch.nn.Embedding by ops.embedding. A split weight gives fp32 rows: the residual stream starts here, in fp32."""

import torch
from torch import Tensor

from ..ops.convert import to_float
from ..ops.embedding import INDEX_DTYPES, embedding


class Embedding(torch.nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        if input.dtype not in INDEX_DTYPES:
            return super().forward(input)  # torch's own word on it
        rows = embedding(input, self.weight, self.padding_idx)
        # Not hasattr: a module searches its parameters, buffers and children before it says no.
        return to_float(rows) if "_split_lo" in self.__dict__ else rows


def why_not(module: torch.nn.Embedding) -> str | None:
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(module, option):
            return f"uses {option}"
    return None

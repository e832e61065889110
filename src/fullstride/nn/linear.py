"""torch.nn.Linear over ops.linear; a head with many classes gives logits that are computed only if somebody looks."""

import torch
from torch import Tensor

from ..ops.linear import linear
from ..rewriting.lazy_logits import lazy_linear, wants_lazy


class Linear(torch.nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if wants_lazy(self, input):
            return lazy_linear(input, self.weight, self.bias)
        return linear(input, self.weight, self.bias)

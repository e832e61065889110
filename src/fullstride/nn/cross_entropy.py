"""torch.nn.CrossEntropyLoss by ops.cross_entropy, for class indices over the last dimension."""

import torch
from torch import Tensor

from ..ops import cross_entropy as op


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if fits(input, target):
            return op.cross_entropy(input, target, self.ignore_index, self.label_smoothing, self.reduction)
        return super().forward(input, target)


def why_not(module: torch.nn.CrossEntropyLoss) -> str | None:
    return None if module.weight is None else "weights its classes"


def fits(input: Tensor, target: Tensor) -> bool:
    """Whether the op computes the same: logits [rows, classes] and a class index a row."""
    return (
        type(input) in (Tensor, torch.nn.Parameter)  # lazy logits know what to do themselves
        and input.dim() == 2
        and target.dim() == 1
        and target.dtype == torch.int64
        and input.shape[0] == target.shape[0]
    )

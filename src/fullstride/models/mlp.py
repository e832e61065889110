"""A classifier: Linear and ReLU in turns, then one score a class.

Plain PyTorch: the stock side of a comparison loads this file by its path, so it must not import anything of Fullstride.
"""

import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


def build(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """widths: inputs, hidden layers, classes."""
    layers: list[nn.Module] = [nn.Flatten()]  # images come with channels, rows and columns
    *hidden, (last, num_classes) = itertools.pairwise(widths)
    for num_in, num_out in hidden:
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(last, num_classes))


def loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """batch: inputs (batch, ...), labels (batch,)."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)

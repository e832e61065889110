"""torch.nn.Conv1d over ops.conv1d, where that pays: channels innermost in memory, and enough of them."""

import torch
from torch import Tensor

from ..ops.conv1d import conv1d, conv1d_reference, pays


class Conv1d(torch.nn.Conv1d):
    def forward(self, input: Tensor) -> Tensor:
        return convolve(self, input)


def convolve(layer: torch.nn.Conv1d, x: Tensor, activation: str = "none") -> Tensor:
    """activation(layer(x)) of a layer that why_not() has no word against."""
    padding = layer.padding if isinstance(layer.padding, str) else layer.padding[0]
    function = conv1d if pays(x, layer.weight) else conv1d_reference
    return function(x, layer.weight, layer.bias, padding, activation)


def why_not(module: torch.nn.Conv1d) -> str | None:
    for name, usual in (("stride", (1,)), ("dilation", (1,)), ("groups", 1), ("padding_mode", "zeros")):
        value = getattr(module, name)
        if value != usual:
            value = value[0] if isinstance(value, tuple) else value
            return f"{name} is {value}; the kernel takes {usual[0] if isinstance(usual, tuple) else usual}"
    return None

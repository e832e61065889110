"""The activations that bias_act and glu share: their names, their numbers in the C ABI, their formulas in torch."""

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
"""The codes of fs_activation. "gelu" is the exact one."""


def activate(x: Tensor, activation: str) -> Tensor:
    match activation:
        case "none":
            return x
        case "relu":
            return F.relu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "silu":
            return F.silu(x)
    raise AssertionError(activation)


def check_activation(op: str, activation: str, allowed: Iterable[str]) -> None:
    if activation not in allowed:
        raise ValueError(f"{op}: expected an activation of {', '.join(allowed)}; got {activation!r}")

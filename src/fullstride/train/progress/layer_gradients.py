"""The norm of the gradient in each layer: where a model learns, stalls or explodes."""

from collections import defaultdict
from typing import Any

from torch import Tensor, nn

from ...ops.grads import grad_norm


def layer_norms(model: nn.Module, optimizer: Any) -> dict[str, float | None]:
    """By the name of the module that owns the parameters; None where it is not finite. Without the loss scale."""
    layers: dict[str, list[Tensor]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            layers[name.rpartition(".")[0] or name].append(parameter.grad)
    scale = 1.0 if optimizer.scaler is None else optimizer.scaler.scale
    norms = {name: grad_norm(gradients) for name, gradients in layers.items()}
    return {name: norm / scale if finite else None for name, (norm, finite) in norms.items()}

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ....ops._optimizer import ParamList, make_slot
from ....ops.lamb import LAMBGroup, lamb_step
from ..row import Row

SHAPES = [(4096, 4096), (4096,), (4096, 4096), (4096,), (1024, 4096), (1024,)]  # 38 million parameters


def plain_lamb(
    weights: list[Tensor], gradients: list[Tensor], lr: float = 0.01, decay: float = 0.01, eps: float = 1e-6
) -> Callable[[], None]:
    """LAMB as people write it in torch: a loop over the tensors, an operation at a time."""
    beta1, beta2 = 0.9, 0.999
    states = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
    step = 0

    def run() -> None:
        nonlocal step
        step += 1
        correction1, correction2 = 1 - beta1**step, 1 - beta2**step
        for weight, gradient, (m, v) in zip(weights, gradients, states, strict=True):
            m.mul_(beta1).add_(gradient, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            update = (m / correction1) / ((v / correction2).sqrt() + eps)
            update.add_(weight, alpha=decay)
            weight_norm, update_norm = weight.norm(), update.norm()
            ratio = torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0).item()
            weight.add_(update, alpha=-lr * ratio)

    return run


def rows() -> Iterator[Row]:
    weights, gradients = ([torch.randn(shape) * 0.01 for shape in SHAPES] for _ in range(2))
    numel = sum(w.numel() for w in weights)
    formats = [
        ("fp32", "fp32", torch.float32, 40, {"plain torch": 6.0}),
        ("split", "bf16", torch.bfloat16, 26, {}),
        ("split", "8bit", torch.bfloat16, 20, {}),
    ]
    for weight_format, state_format, dtype, bytes_each, targets in formats:
        slots = [make_slot(w.clone(), weight_format, state_format, stream=i) for i, w in enumerate(weights)]
        grads = [g.to(dtype) for g in gradients]
        yield Row(
            case=f"weights {weight_format}, states {state_format}, {numel / 1e6:.0f}M parameters",
            ours=partial(lamb_step, ParamList(slots), grads, [LAMBGroup()]),
            peers={"plain torch": plain_lamb([w.clone() for w in weights], gradients)},
            bytes=bytes_each * numel,  # weights and states are read twice
            mix="update",
            targets=targets,
            parameters=numel,
        )

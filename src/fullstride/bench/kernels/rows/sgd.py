from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ....ops._optimizer import ParamList, make_slot
from ....ops.sgd import SGDGroup, sgd_step
from ..row import Row
from .lamb import SHAPES


def torch_sgd(weights: list[Tensor], gradients: list[Tensor], fused: bool) -> Callable[[], object]:
    parameters = [torch.nn.Parameter(w.clone()) for w in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=fused).step


def rows() -> Iterator[Row]:
    weights, gradients = ([torch.randn(shape) * 0.01 for shape in SHAPES] for _ in range(2))
    numel = sum(w.numel() for w in weights)
    for weight_format, state_format, dtype, bytes_each in [
        ("fp32", "fp32", torch.float32, 20),
        ("split", "bf16", torch.bfloat16, 14),
        ("split", "8bit", torch.bfloat16, 12),
    ]:
        slots = [make_slot(w.clone(), weight_format, state_format, ("m",), stream=i) for i, w in enumerate(weights)]
        grads = [g.to(dtype) for g in gradients]
        yield Row(
            case=f"momentum, weights {weight_format}, states {state_format}, {numel / 1e6:.0f}M parameters",
            ours=partial(sgd_step, ParamList(slots), grads, [SGDGroup(momentum=0.9)]),
            peers={
                "torch default": torch_sgd(weights, gradients, fused=False),
                "torch fused": torch_sgd(weights, gradients, fused=True),
            },
            bytes=bytes_each * numel,
            mix="update",
            streaming=weight_format == "fp32",
            parameters=numel,
        )

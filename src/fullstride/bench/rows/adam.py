from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ...ops._optimizer import ParamList, make_slot
from ...ops.adam import AdamGroup, adam_step
from ..row import Row

WIDTHS = [784, 4096, 4096, 4096, 2560, 1000]  # an MLP of 50 million parameters
# weights and states, read and written, and the gradient, read
BYTES = {("fp32", "fp32"): 28, ("split", "bf16"): 18, ("split", "8bit"): 14}


def rows() -> Iterator[Row]:
    shapes = [shape for fan_in, fan_out in pairwise(WIDTHS) for shape in ((fan_out, fan_in), (fan_out,))]
    weights = [torch.randn(shape) * 0.02 for shape in shapes]
    gradients = [torch.randn(shape) * 0.01 for shape in shapes]
    numel = sum(weight.numel() for weight in weights)
    fused = torch_step(weights, gradients, fused=True)
    for (weight_format, state_format), size in BYTES.items():
        peers, targets = {"torch fused": fused}, {"torch fused": 1.35 if state_format == "bf16" else 1.6}
        if weight_format == "fp32":
            peers["torch default"] = torch_step(weights, gradients)
            targets = {"torch fused": 1.0, "torch default": 5.0}
        yield Row(
            op="adam",
            case=f"AdamW {weight_format} weights, {state_format} states, {numel / 1e6:.1f} M parameters",
            ours=our_step(weights, gradients, weight_format, state_format),
            peers=peers,
            bytes=size * numel,
            targets=targets,
            mix="update",
            streaming=True,
        )


def our_step(
    weights: list[Tensor], gradients: list[Tensor], weight_format: str, state_format: str
) -> Callable[[], object]:
    """Gradients have the dtype of the weights, as autograd gives them."""
    dtype = torch.float32 if weight_format == "fp32" else torch.bfloat16
    given = [gradient.to(dtype) for gradient in gradients]
    slots = [make_slot(weight.clone(), weight_format, state_format, stream=i) for i, weight in enumerate(weights)]
    tensors, groups = ParamList(slots), [AdamGroup(lr=1e-4, weight_decay=0.01)]
    return lambda: adam_step(tensors, given, groups)


def torch_step(weights: list[Tensor], gradients: list[Tensor], fused: bool | None = None) -> Callable[[], object]:
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=fused).step

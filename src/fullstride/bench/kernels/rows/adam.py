from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ....ops import _formats as formats
from ....ops._optimizer import ParamList, make_slot
from ....ops.adam import AdamGroup, adam_step
from ....optim import AdamW
from ..row import Row

WIDTHS = [784, 4096, 4096, 4096, 2560, 1000]  # an MLP of 50 million parameters
# weights and states, read and written, and the gradient, read
BYTES = {("fp32", "fp32"): 28, ("split", "bf16"): 18, ("split", "8bit"): 14}
# at least so many times as fast as torch's fused step: the kernel, step(), and step() with clipping against
# clip_grad_norm_ and torch's step
TARGETS = {
    ("fp32", "fp32"): (1.0, 1.0, 1.3),
    ("split", "bf16"): (1.35, 1.35, 1.9),
    ("split", "8bit"): (1.6, 1.6, 2.2),
}
CLIP = 1.0


def rows() -> Iterator[Row]:
    yield from kernel_rows(mlp_shapes())
    yield from step_rows("MLP", mlp_shapes())
    yield from step_rows("Llama", llama_shapes())


def mlp_shapes() -> list[tuple[int, ...]]:
    return [shape for fan_in, fan_out in pairwise(WIDTHS) for shape in ((fan_out, fan_in), (fan_out,))]


def llama_shapes() -> list[tuple[int, ...]]:
    """110 million parameters in 110 tensors, with the head tied to the embedding."""
    dim, hidden, layers, vocabulary = 768, 2048, 12, 32000
    attention, mlp = [(dim, dim)] * 4, [(hidden, dim), (hidden, dim), (dim, hidden)]
    return [(vocabulary, dim), *[(dim,), *attention, (dim,), *mlp] * layers, (dim,)]


# ---- the kernel alone ----------------------------------------------------------------------------------------------


def kernel_rows(shapes: list[tuple[int, ...]]) -> Iterator[Row]:
    weights, gradients = make(shapes)
    fused = torch_step(weights, gradients, fused=True)
    for (weight_format, state_format), size in BYTES.items():
        target = TARGETS[weight_format, state_format][0]
        peers, targets = {"torch fused": fused}, {"torch fused": target}
        if weight_format == "fp32":
            peers["torch default"] = torch_step(weights, gradients)
            targets["torch default"] = 5.0
        yield Row(
            case=f"AdamW {weight_format} weights, {state_format} states, {millions(weights)}",
            ours=kernel_step(weights, gradients, weight_format, state_format),
            peers=peers,
            bytes=size * numel(weights),
            targets=targets,
            mix="update",
            streaming=True,
            parameters=numel(weights),
        )


def kernel_step(
    weights: list[Tensor], gradients: list[Tensor], weight_format: str, state_format: str
) -> Callable[[], object]:
    """Gradients have the dtype of the weights, as autograd gives them."""
    dtype = torch.float32 if weight_format == "fp32" else torch.bfloat16
    given = [gradient.to(dtype) for gradient in gradients]
    slots = [make_slot(weight.clone(), weight_format, state_format, stream=i) for i, weight in enumerate(weights)]
    tensors, groups = ParamList(slots), [AdamGroup(lr=1e-4, weight_decay=0.01)]
    return lambda: adam_step(tensors, given, groups)


# ---- step() as users call it ---------------------------------------------------------------------------------------


def step_rows(model: str, shapes: list[tuple[int, ...]]) -> Iterator[Row]:
    weights, gradients = make(shapes)
    for clip, peer in ((None, "torch fused"), (CLIP, "torch fused, clip_grad_norm_")):
        stock = torch_step(weights, gradients, fused=True, clip=clip)
        for (weight_format, state_format), size in BYTES.items():
            clipped = "" if clip is None else ", clipped"
            # a clipped step reads the gradients once more
            read = 0 if clip is None else 4 if weight_format == "fp32" else 2
            yield Row(
                case=f"step(){clipped}: {model}, {weight_format} weights, {state_format} states, {millions(weights)}",
                ours=our_step(weights, gradients, weight_format, state_format, clip),
                peers={peer: stock},
                bytes=(size + read) * numel(weights),
                targets={peer: TARGETS[weight_format, state_format][1 if clip is None else 2]},
                mix="update",
                parameters=numel(weights),
            )


def our_step(
    weights: list[Tensor], gradients: list[Tensor], weight_format: str, state_format: str, clip: float | None = None
) -> Callable[[], object]:
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    lower_halves: dict[Tensor, Tensor] = {}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if weight_format == "split":
            parameter.data, lower_halves[parameter] = formats.split(parameter.detach())
        parameter.grad = gradient.to(parameter.dtype)
    optimizer = AdamW(parameters, lr=1e-4, weight_decay=0.01, state_precision=state_format, clip=clip)
    optimizer.use_split(lower_halves)
    return optimizer.step


def torch_step(
    weights: list[Tensor], gradients: list[Tensor], fused: bool | None = None, clip: float | None = None
) -> Callable[[], object]:
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=fused)
    if clip is None:
        return optimizer.step

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()

    return step


# ---- inputs --------------------------------------------------------------------------------------------------------


def make(shapes: list[tuple[int, ...]]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and gradients."""
    return [torch.randn(shape) * 0.02 for shape in shapes], [torch.randn(shape) * 0.01 for shape in shapes]


def numel(weights: list[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def millions(weights: list[Tensor]) -> str:
    return f"{numel(weights) / 1e6:.1f} M parameters"

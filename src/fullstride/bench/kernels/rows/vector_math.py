from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ....ops import vector_math
from ..row import Row, forward_backward

NUMEL = 1 << 24  # 64 MiB of fp32, 32 of bf16, in and out
NAMES = ["exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "erf"]


def rows() -> Iterator[Row]:
    for dtype, label in [(torch.float32, "fp32"), (torch.bfloat16, "bf16")]:
        x = (torch.rand(NUMEL) * 8 + 0.01).to(dtype)
        for name in NAMES:
            yield Row(
                case=f"{name} {label}, 16 million",
                ours=partial(getattr(vector_math, name), x),
                peers={"torch": partial(getattr(torch, name), x)},
                bytes=2 * x.numel() * x.element_size(),
                streaming=name == "sqrt" and dtype == torch.float32,  # the others compute longer than they stream
            )
        leaf, gradient = x.requires_grad_(), torch.ones_like(x)
        yield Row(
            case=f"tanh forward+backward {label}, 16 million",
            ours=forward_backward(vector_math.tanh, leaf, gradient=gradient),
            peers={"torch": forward_backward(torch.tanh, leaf, gradient=gradient)},
            bytes=5 * x.numel() * x.element_size(),
        )
        yield from _arithmetic(label, x.detach(), gradient)


def _arithmetic(label: str, a: Tensor, b: Tensor) -> Iterator[Row]:
    cases = [
        ("add", partial(vector_math.add, a, b), partial(torch.add, a, b), 3),
        ("mul", partial(vector_math.mul, a, b), partial(torch.mul, a, b), 3),
        ("scale", partial(vector_math.scale, a, 0.5), partial(torch.mul, a, 0.5), 2),
    ]
    for name, ours, torchs, arrays in cases:
        yield Row(
            case=f"{name} {label}, 16 million",
            ours=ours,
            peers={"torch": torchs},
            bytes=arrays * a.numel() * a.element_size(),
            streaming=True,
        )

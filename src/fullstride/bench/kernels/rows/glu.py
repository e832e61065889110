from collections.abc import Iterator

import torch

from ....ops._activations import activate
from ....ops.glu import glu
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    shape = 8192, 2816
    cases = [
        (torch.bfloat16, "bf16", "silu", "SwiGLU", 2.0), (torch.float32, "fp32", "silu", "SwiGLU", 2.0),
        (torch.bfloat16, "bf16", "gelu", "GEGLU", None), (torch.bfloat16, "bf16", "gelu_tanh", "GEGLU tanh", None),
    ]  # fmt: skip
    for dtype, name, activation, unit, target in cases:
        gate, up, gradient = torch.randn(3, *shape).to(dtype)
        gate.requires_grad_()
        up.requires_grad_()
        targets = {} if target is None else {"torch": target}
        yield Row(
            case=f"{unit} forward+backward {name} 8192 x 2816",
            ours=forward_backward(lambda g, u, a=activation: glu(g, u, a), gate, up, gradient=gradient),
            peers={
                "torch": forward_backward(lambda g, u, a=activation: activate(g, a) * u, gate, up, gradient=gradient)
            },
            bytes=8 * gate.numel() * gate.element_size(),
            targets=targets,
        )
        if target is None:
            continue
        x = torch.randn(shape[0], 2 * shape[1]).to(dtype).requires_grad_()

        def composition(x: torch.Tensor, activation: str = activation) -> torch.Tensor:
            g, u = x.chunk(2, dim=-1)
            return activate(g, activation) * u

        yield Row(
            case=f"{unit} of halves forward+backward {name} 8192 x 2816",
            ours=forward_backward(lambda x, a=activation: glu(x, None, a), x, gradient=gradient),
            peers={"torch": forward_backward(composition, x, gradient=gradient)},
            bytes=8 * gate.numel() * gate.element_size(),
            targets=targets,
        )

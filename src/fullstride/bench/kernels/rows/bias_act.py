from collections.abc import Iterator

import torch

from ....ops._activations import activate
from ....ops.bias_act import bias_act
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    cases = [
        (torch.bfloat16, "bf16", "gelu"), (torch.bfloat16, "bf16", "relu"), (torch.float32, "fp32", "gelu"),
        (torch.float32, "fp32", "gelu_tanh"), (torch.float32, "fp32", "silu"), (torch.float32, "fp32", "relu"),
    ]  # fmt: skip
    for dtype, name, activation in cases:
        x, gradient = torch.randn(2, 8192, 4096).to(dtype)
        x.requires_grad_()
        bias = torch.randn(4096).to(dtype).requires_grad_()
        peer = forward_backward(lambda x, b, a=activation: activate(x + b, a), x, bias, gradient=gradient)
        yield Row(
            case=f"{activation} forward+backward {name} 8192 x 4096",
            ours=forward_backward(lambda x, b, a=activation: bias_act(x, b, a), x, bias, gradient=gradient),
            peers={"torch": peer},
            bytes=5 * x.numel() * x.element_size(),
            streaming=activation == "relu",
        )

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ....ops.layer_norm import layer_norm
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    for dtype, name, target in [(torch.bfloat16, "bf16", {"torch": 1.3}), (torch.float32, "fp32", {})]:
        x, gradient = torch.randn(2, 16384, 1024).to(dtype)
        x.requires_grad_()
        weight, bias = (torch.randn(1024).to(dtype).requires_grad_() for _ in range(2))
        yield Row(
            case=f"forward+backward {name} 16384 x 1024",
            ours=forward_backward(layer_norm, x, weight, bias, gradient=gradient),
            peers={
                "torch": forward_backward(
                    lambda x, w, b: F.layer_norm(x, w.shape, w, b), x, weight, bias, gradient=gradient
                )
            },
            bytes=5 * x.numel() * x.element_size(),
            targets=target,
        )

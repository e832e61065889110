from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ....ops.layer_norm import layer_norm
from ..norms import small_rows
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    for dtype, name, target in [(torch.bfloat16, "bf16", {"torch": 1.3}), (torch.float32, "fp32", {})]:
        x, gradient = torch.randn(2, 16384, 1024).to(dtype)
        x.requires_grad_()
        weight, bias = (torch.randn(1024).to(dtype).requires_grad_() for _ in range(2))
        yield Row(
            case=f"forward+backward {name} 16384 x 1024",
            ours=forward_backward(layer_norm, x, weight, bias, gradient=gradient),
            peers={"torch": forward_backward(torchs, x, weight, bias, gradient=gradient)},
            bytes=5 * x.numel() * x.element_size(),
            targets=target,
        )
    yield from small_rows(layer_norm, torchs, num_weights=2)


def torchs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)

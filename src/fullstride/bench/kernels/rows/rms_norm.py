from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ....ops.rms_norm import rms_norm
from ..norms import small_rows
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    for dtype, name, target in [(torch.bfloat16, "bf16", {"torch": 2.0}), (torch.float32, "fp32", {})]:
        x, gradient = torch.randn(2, 16384, 1024).to(dtype)
        x.requires_grad_()
        weight = torch.randn(1024).to(dtype).requires_grad_()
        yield Row(
            case=f"forward+backward {name} 16384 x 1024",
            ours=forward_backward(rms_norm, x, weight, gradient=gradient),
            peers={"torch": forward_backward(torchs, x, weight, gradient=gradient)},
            bytes=5 * x.numel() * x.element_size(),
            targets=target,
        )
    yield from small_rows(rms_norm, torchs, num_weights=1)


def torchs(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight)

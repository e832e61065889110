from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ....ops.rms_norm import rms_norm
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    for dtype, name, target in [(torch.bfloat16, "bf16", {"torch": 2.0}), (torch.float32, "fp32", {})]:
        x, gradient = torch.randn(2, 16384, 1024).to(dtype)
        x.requires_grad_()
        weight = torch.randn(1024).to(dtype).requires_grad_()
        yield Row(
            case=f"forward+backward {name} 16384 x 1024",
            ours=forward_backward(rms_norm, x, weight, gradient=gradient),
            peers={"torch": forward_backward(lambda x, w: F.rms_norm(x, w.shape, w), x, weight, gradient=gradient)},
            bytes=5 * x.numel() * x.element_size(),
            targets=target,
        )

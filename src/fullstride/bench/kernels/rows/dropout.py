from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ....ops.dropout import dropout
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    for dtype, name in [(torch.float32, "fp32"), (torch.bfloat16, "bf16")]:
        x, gradient = torch.randn(2, 16384, 1024).to(dtype)
        x.requires_grad_()
        yield Row(
            case=f"p = 0.1 forward+backward {name} 16384 x 1024",
            ours=forward_backward(lambda x: dropout(x, 0.1), x, gradient=gradient),
            peers={"torch": forward_backward(lambda x: F.dropout(x, 0.1), x, gradient=gradient)},
            bytes=4 * x.numel() * x.element_size(),
            streaming=True,
        )

from collections.abc import Iterator

import torch
from torch import Tensor

from ....ops.softmax import softmax
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    for dtype, name in [(torch.bfloat16, "bf16"), (torch.float32, "fp32")]:
        x, gradient = torch.randn(2, 32768, 1024).to(dtype)
        x.requires_grad_()
        yield Row(
            case=f"forward+backward {name} 32768 x 1024",
            ours=forward_backward(softmax, x, gradient=gradient),
            peers={"torch": forward_backward(lambda x: torch.softmax(x, dim=-1), x, gradient=gradient)},
            bytes=5 * x.numel() * x.element_size(),
        )
    scores, gradient = torch.randn(2, 96, 512, 512).bfloat16()
    scores.requires_grad_()
    mask = torch.full((512, 512), -torch.inf).triu(1).bfloat16()

    def composition(x: Tensor) -> Tensor:
        return torch.softmax(x * 0.125 + mask, dim=-1)

    yield Row(
        case="causal, scaled forward+backward bf16 96 x 512 x 512",
        ours=forward_backward(lambda x: softmax(x, 0.125, causal_offset=0), scores, gradient=gradient),
        peers={"torch": forward_backward(composition, scores, gradient=gradient)},
        bytes=7 * scores.numel(),  # half of x, dy and twice y are read, all of y and dx are written
    )

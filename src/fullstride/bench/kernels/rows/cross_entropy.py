from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ....ops.cross_entropy import cross_entropy
from ..row import Row, forward_backward

CASES = [
    (2048, 32000, torch.bfloat16, {"torch": 2.0}),
    (1024, 32000, torch.float32, {}),
    (1024, 50257, torch.bfloat16, {}),
    (32768, 1000, torch.bfloat16, {}),
]


def rows() -> Iterator[Row]:
    for num_rows, classes, dtype, targets in CASES:
        name = "bf16" if dtype == torch.bfloat16 else "fp32"
        logits = torch.randn(num_rows, classes).to(dtype).requires_grad_()
        target = torch.randint(0, classes, (num_rows,))
        yield Row(
            case=f"forward+backward {name} {num_rows} x {classes}",
            ours=forward_backward(lambda x, t=target: cross_entropy(x, t), logits),
            peers={"torch": forward_backward(lambda x, t=target: F.cross_entropy(x, t), logits)},
            bytes=2 * logits.numel() * logits.element_size(),
            targets=targets,
        )
    num_rows, classes = 2048, 32000
    plain, target = torch.randn(num_rows, classes).bfloat16(), torch.randint(0, classes, (num_rows,))
    yield Row(
        case=f"forward bf16 {num_rows} x {classes}",
        ours=lambda: cross_entropy(plain, target),
        peers={"torch": lambda: F.cross_entropy(plain, target)},
        bytes=plain.numel() * plain.element_size(),
    )

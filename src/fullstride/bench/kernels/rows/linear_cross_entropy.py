from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ....ops.linear_cross_entropy import linear_cross_entropy
from ....rewriting.lazy_logits import lazy_linear
from ..row import PORTABLE, Row, counted, forward_backward, name_of

# Products are all of it: it cannot be faster than they are. The second case is a masked language model.
CASES = [
    (1024, 768, 32000, torch.float32, 0.0, {"linear + cross_entropy": 1.1, "torch": 1.5}),
    (1024, 768, 30522, torch.float32, 0.85, {"linear + cross_entropy": 4.0}),
]


def rows() -> Iterator[Row]:
    for num_rows, features, classes, dtype, ignored, targets in CASES:
        hidden = torch.randn(num_rows, features).to(dtype).requires_grad_()
        weight = (torch.randn(classes, features) / features**0.5).to(dtype).requires_grad_()
        target = torch.randint(0, classes, (num_rows,))
        target[: int(ignored * num_rows)] = -100

        def lazy(x: Tensor, w: Tensor, t: Tensor = target) -> Tensor:
            return F.cross_entropy(lazy_linear(x, w), t)

        def stock(x: Tensor, w: Tensor, t: Tensor = target) -> Tensor:
            return F.cross_entropy(F.linear(x, w), t)

        def chunked(x: Tensor, w: Tensor, t: Tensor = target) -> Tensor:
            return F.linear_cross_entropy(x, w, t, options=torch.nn.LinearCrossEntropyOptions())

        wanted = target != -100  # no loss asks for the logits of the others
        needed = hidden.detach()[wanted].requires_grad_()
        yield Row(
            case=f"forward+backward {name_of(dtype)} {num_rows} x {features} x {classes}, {ignored:.0%} ignored",
            ours=forward_backward(lambda x, w, t=target: linear_cross_entropy(x, w, t), hidden, weight),
            peers={
                "linear + cross_entropy": forward_backward(stock, hidden, weight),
                "torch": forward_backward(chunked, hidden, weight),
                "lazy logits": forward_backward(lazy, hidden, weight),
            },
            targets=targets,
            flops=counted(lambda x, w, t=target[wanted]: F.cross_entropy(F.linear(x, w), t), needed, weight),
            precision=name_of(dtype),
            left_out={PORTABLE: "the products are torch's"},
        )

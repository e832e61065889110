"""Rows that the norms share: batches so small that what a call costs from Python is most of the time."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from .row import Row, forward_backward, name_of

BATCHES, WIDTH = (8, 16, 32), 768


def small_rows(ours: Callable[..., Tensor], torchs: Callable[..., Tensor], num_weights: int) -> Iterator[Row]:
    """Of ours(x, weight, ...) and torchs(x, weight, ...), forward alone and with backward."""
    for dtype in (torch.float32, torch.bfloat16):
        weights = [torch.randn(WIDTH).to(dtype) for _ in range(num_weights)]
        for batch in BATCHES:
            x, gradient = torch.randn(2, batch, WIDTH).to(dtype)
            leaves = [tensor.clone().requires_grad_() for tensor in (x, *weights)]
            case, size = f"{name_of(dtype)} {batch} x {WIDTH}", x.numel() * x.element_size()
            yield Row(
                case=f"forward {case}",
                ours=partial(ours, x, *weights),
                peers={"torch": partial(torchs, x, *weights)},
                bytes=2 * size,
                mix=None,
            )
            yield Row(
                case=f"forward+backward {case}",
                ours=forward_backward(ours, *leaves, gradient=gradient),
                peers={"torch": forward_backward(torchs, *leaves, gradient=gradient)},
                bytes=5 * size,
                mix=None,
            )

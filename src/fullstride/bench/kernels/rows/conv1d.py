from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ....ops.conv1d import conv1d, conv1d_reference
from ..row import Row, counted, forward_backward

# (batch, frames, in, out, taps, activation): the feed-forward block and a predictor of FastSpeech 2, and mels in
SHAPES = [
    (16, 400, 256, 1024, 9, "relu"),
    (16, 400, 1024, 256, 1, "none"),
    (16, 400, 256, 768, 3, "none"),
    (16, 60, 256, 256, 3, "relu"),
    (16, 400, 80, 256, 5, "none"),
]


def rows() -> Iterator[Row]:
    for shape in SHAPES:
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
            yield _row(*shape, dtype, name)


def _row(
    batch: int, frames: int, channels: int, filters: int, taps: int, activation: str, dtype: torch.dtype, name: str
) -> Row:
    x, weight = torch.randn(batch, frames, channels), torch.randn(filters, channels, taps) / (channels * taps) ** 0.5
    inputs = [t.to(dtype).requires_grad_() for t in (x, weight, torch.randn(filters))]
    gradient, reference = torch.randn(batch, frames, filters).to(dtype), _layer(conv1d_reference, activation)
    return Row(
        case=f"{activation}, forward+backward {name} {batch} x {frames}, {channels} to {filters}, {taps} taps",
        ours=forward_backward(_layer(conv1d, activation), *inputs, gradient=gradient),
        peers={"torch": forward_backward(reference, *inputs, gradient=gradient)},
        flops=counted(reference, *inputs),
        precision=name,
    )


def _layer(function: Callable[..., Tensor], activation: str) -> Callable[..., Tensor]:
    """Of x: (batch, frames, channels), as Transformers call it."""
    return lambda x, w, b: function(x.transpose(1, 2), w, b, w.shape[2] // 2, activation).transpose(1, 2)

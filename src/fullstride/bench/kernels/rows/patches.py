from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ....ops.patches import patches, patches_reference
from ..row import PORTABLE, Row, counted, forward_backward

# (batch, in, size, out, patch): CLIP's ViTs, and the last downsampling of a ConvNeXt, which wants its dx
SHAPES = [(12, 3, 224, 640, 16), (12, 3, 224, 768, 32), (12, 384, 14, 768, 2)]


def rows() -> Iterator[Row]:
    for shape in SHAPES:
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
            yield _row(*shape, dtype, name)


def _row(batch: int, channels: int, size: int, filters: int, patch: int, dtype: torch.dtype, name: str) -> Row:
    x = torch.randn(batch, channels, size, size).to(dtype)
    if channels > 3:
        x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(filters, channels, patch, patch) / (channels * patch**2) ** 0.5
    inputs = [t.to(dtype).requires_grad_() for t in (weight, torch.randn(filters))]
    gradient = torch.randn(batch, (size // patch) ** 2, filters).to(dtype)
    return Row(
        case=f"forward+backward {name} {batch} x {channels} x {size} x {size}, {filters} of {patch} x {patch}",
        ours=forward_backward(_words(patches), x, *inputs, gradient=gradient),
        peers={"torch": forward_backward(_words(patches_reference), x, *inputs, gradient=gradient)},
        flops=counted(_words(patches_reference), x, *inputs),
        precision=name,
        left_out={PORTABLE: "the products are torch's"},
    )


def _words(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """(batch, patches, out), as a Transformer goes on."""
    return lambda x, weight, bias: function(x, weight, bias).flatten(2).transpose(1, 2)

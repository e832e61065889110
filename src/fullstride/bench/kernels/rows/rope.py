from collections.abc import Iterator

import torch
from torch import Tensor

from ....ops.rope import rope, rope_tables
from ..row import Row, forward_backward


def rotate_half(x: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def composition(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As models write it: [seq, head_dim] tables in the dtype of x, the angles twice in a row."""
    return x * cos + rotate_half(x) * sin


def composition_interleaved(x: Tensor, turns: Tensor) -> Tensor:
    """As llama writes it: pairs as complex numbers, in fp32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(x.dtype)


def rows() -> Iterator[Row]:
    batch, seq, heads, dim = 4, 2048, 16, 128
    cos, sin = rope_tables(seq, dim)
    for dtype, name, target in [(torch.bfloat16, "bf16", {"torch": 3.0}), (torch.float32, "fp32", {})]:
        x, gradient = torch.randn(2, batch, seq, heads, dim).to(dtype)
        x.requires_grad_()
        wide_cos, wide_sin = (torch.cat((table, table), dim=-1)[:, None].to(dtype) for table in (cos, sin))
        peer = forward_backward(lambda x, c=wide_cos, s=wide_sin: composition(x, c, s), x, gradient=gradient)
        yield Row(
            case=f"half-split forward+backward {name} 4 x 2048 x 16 x 128",
            ours=forward_backward(lambda x: rope(x, cos, sin), x, gradient=gradient),
            peers={"torch": peer},
            bytes=4 * x.numel() * x.element_size(),
            targets=target,
            streaming=True,
        )
        turns = torch.complex(cos, sin)
        yield Row(
            case=f"interleaved forward+backward {name} 4 x 2048 x 16 x 128",
            ours=forward_backward(lambda x: rope(x, cos, sin, interleaved=True), x, gradient=gradient),
            peers={"torch": forward_backward(lambda x, t=turns: composition_interleaved(x, t), x, gradient=gradient)},
            bytes=4 * x.numel() * x.element_size(),
            streaming=True,
        )

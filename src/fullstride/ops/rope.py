"""Rotary position embedding: pairs of elements turned by an angle that grows with the position.

    (a, b) -> (a cos - b sin, b cos + a sin)

Pairs are (i, i + d/2), as Hugging Face writes it, or (2i, 2i + 1) when interleaved, as in llama2.c. The gradient is the
rotation by the negative angle.
"""

import torch
from torch import Tensor

from .. import _native
from ._tensors import contiguous, kernel_dtype, needs_grad, pointer, takes_kernel


def rope_tables(num_positions: int, head_dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [num_positions, head_dim / 2] in fp32: angle = position * base^(-2i / head_dim)."""
    if head_dim % 2 or head_dim < 0:
        raise ValueError(f"rope_tables: expected an even head_dim, got {head_dim}; only pairs can be turned")
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / max(head_dim, 1))
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64, device="cpu"), frequencies)
    return angles.cos().float(), angles.sin().float()


def rope_reference(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, offset: int = 0,
    positions: Tensor | None = None, seq_dim: int = 1,
) -> Tensor:  # fmt: skip
    """As rope, in the dtype of x."""
    num_positions, half = x.shape[seq_dim], cos.shape[-1]
    at = torch.arange(offset, offset + num_positions, device=x.device) if positions is None else positions
    c, s = (table[at].unsqueeze(-3 if seq_dim == 2 else -2) for table in (cos, sin))  # a dimension for the heads
    wide = x if x.dtype == torch.float64 else x.float()
    turned, rest = wide[..., : 2 * half], wide[..., 2 * half :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    pair = (a * c - b * s, b * c + a * s)
    y = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((y, rest), dim=-1).to(x.dtype)


def _turn(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, offset: int, positions: Tensor | None, seq_dim: int,
    inverse: bool,
) -> Tensor:  # fmt: skip
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = torch.empty_like(x)  # of the same layout, if x is dense in any order
    if y.stride(-1) != 1:  # x overlaps itself: empty_like then orders the dimensions by strides that say little
        y = x.new_empty(x.shape)
    shape, x_strides, y_strides = x.shape, x.stride(), y.stride()
    seq, head = seq_dim, 3 - seq_dim
    _native.kernels.rope(
        x.data_ptr(), y.data_ptr(), cos.data_ptr(), sin.data_ptr(), pointer(positions),
        shape[0], shape[seq], shape[head], shape[3], 2 * cos.shape[1],
        x_strides[0], x_strides[seq], x_strides[head], y_strides[0], y_strides[seq], y_strides[head],
        offset, interleaved, inverse, kernel_dtype(x),
    )  # fmt: skip
    return y


class RopeFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, interleaved, offset, positions, seq_dim, inverse):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(cos, sin, positions)
        ctx.arguments = interleaved, offset, seq_dim, inverse
        return _turn(x, cos, sin, interleaved, offset, positions, seq_dim, inverse)

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        cos, sin, positions = ctx.saved_tensors
        interleaved, offset, seq_dim, inverse = ctx.arguments
        turn = RopeFunction.apply if needs_grad(dy) else _turn
        dx = turn(dy, cos, sin, interleaved, offset, positions, seq_dim, not inverse)
        return dx, None, None, None, None, None, None, None


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, offset: int = 0,
    positions: Tensor | None = None, seq_dim: int = 1,
) -> Tensor:  # fmt: skip
    """x turned by its positions: [batch, seq, heads, head_dim], or with seq_dim=2 [batch, heads, seq, head_dim].

    A transposed view is taken as it is, and the result has its layout. cos and sin come from rope_tables; if they are
    narrower than head_dim / 2, the elements beyond stay as they are. Positions are offset, offset + 1, ... (offset is
    the length of a key-value cache), or `positions`, int64 [batch, seq].
    """
    _check(x, cos, sin, offset, positions, seq_dim)
    fixed = cos.dtype == torch.float32 and not (cos.requires_grad or sin.requires_grad)
    if fixed and takes_kernel(x) and takes_kernel(cos, sin):
        cos, sin, positions = cos.contiguous(), sin.contiguous(), contiguous(positions)
        turn = RopeFunction.apply if needs_grad(x) else _turn
        y: Tensor = turn(x, cos, sin, interleaved, offset, positions, seq_dim, False)
        return y
    return rope_reference(x, cos, sin, interleaved, offset, positions, seq_dim)


def _check(x: Tensor, cos: Tensor, sin: Tensor, offset: int, positions: Tensor | None, seq_dim: int) -> None:
    if x.dim() != 4 or seq_dim not in (1, 2):
        raise ValueError(
            "rope: expected x of 4 dimensions, [batch, seq, heads, head_dim] with seq_dim=1 or"
            f" [batch, heads, seq, head_dim] with seq_dim=2, got {tuple(x.shape)} with seq_dim={seq_dim};"
            " add or transpose dimensions"
        )
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > x.shape[3]:
        raise ValueError(
            f"rope: expected cos and sin of one shape [positions, at most {x.shape[3] // 2}], half the head_dim of x,"
            f" got {tuple(cos.shape)} and {tuple(sin.shape)}; make them with rope_tables(num_positions, {x.shape[3]})"
        )
    num_positions, seq = cos.shape[0], x.shape[seq_dim]
    if positions is None:
        first, last = offset, offset + seq - 1
    else:
        if positions.shape != (x.shape[0], seq) or positions.dtype != torch.int64:
            raise ValueError(
                f"rope: expected positions of shape {(x.shape[0], seq)} and dtype int64,"
                f" got {tuple(positions.shape)} and {positions.dtype}; expand or convert them"
            )
        if positions.device != x.device:
            raise ValueError(
                f"rope: expected positions on the device of x, {x.device}, got {positions.device}; move them there"
            )
        if offset:
            raise ValueError(f"rope: expected offset 0 together with positions, got {offset}; add it to the positions")
        if torch.compiler.is_compiling() or positions.is_meta or not positions.numel():
            return
        first, last = (int(end) for end in positions.aminmax())
    if seq and (first < 0 or last >= num_positions):
        raise ValueError(
            f"rope: expected positions in [0, {num_positions}), the rows of cos, got {first} to {last};"
            " make the tables longer"
        )

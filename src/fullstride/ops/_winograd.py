"""A convolution of three taps with two thirds of its multiplications: Winograd's F(2, 3), for fp32.

Two neighbours y0, y1 of the result need four rows d0 .. d3 of the input, a tile, and the taps w0, w1, w2:

    m0 = (d0 - d2) w0                      y0 = m0 + m1 + m2
    m1 = (d1 + d2) (w0 + w1 + w2) / 2      y1 = m1 - m2 + m3
    m2 = (d2 - d1) (w0 - w1 + w2) / 2
    m3 = (d3 - d1) w2

Four products where two results of three taps each would be six; each is one product of matrices over all tiles, m = u v
with u: (tiles, C) and v: (C, N). Backward goes the same way back, from q = (g0, g0 + g1, g0 - g1, g1):

    du = q v^T,   dv = q^T u,   each of the four; then dd and dw by the transposes of the sums above

Against fp64 the errors are 0.6 to 1.3 of the direct product's, whose sums are three times as long. Forward and backward
of 256 -> 768 channels with ReLU, 16 x 260 frames, took 43 ms instead of 60 on the avx2 path and 26 instead of 34 with
AVX-512 (2 cores of Zen 5). Not for bf16: what is added up beforehand would be rounded.
An infinity may come out as NaN, in the very results that the formula makes infinite or NaN, and in no others.
Lavin and Gray, https://arxiv.org/abs/1509.09308.
"""

import torch
from torch import Tensor

from ._unfolding import Unfolding
from .gemm import multiply

TAPS = 3
LEAST_WORK = 1 << 28  # multiplications of the direct product: of 2^27 it took 0.9 of the time on avx2, 1.2 with AVX-512
_LEAST_CHANNELS = 128  # in and out: of 96 it took 0.95 and 1.08 of the time, of 64 1.06 and 1.25


def pays(shape: Unfolding, weight: torch.Size, *dtypes: torch.dtype) -> bool:
    """weight: the shape of it. dtypes: of x, and that in which is multiplied."""
    filters, channels, taps = weight
    if taps != TAPS or any(dtype is not torch.float32 for dtype in dtypes):
        return False
    if min(filters, channels) < _LEAST_CHANNELS:
        return False
    return shape.batch * shape.time_out * weight.numel() >= LEAST_WORK


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Unfolding) -> Tensor:
    """(batch, time_out, N) from x: (batch, time, C) and weight: (N, C, 3)."""
    u, v = _inputs(x, shape), _weights(weight)
    filters, tiles = weight.shape[0], u.shape[1]
    y = x.new_empty(tiles, 2, filters)
    m1, m2 = x.new_empty(2, tiles, filters)
    multiply(u[1], v[1].t(), m1, bias)  # which reaches y0 and y1 by it
    multiply(u[2], v[2].t(), m2)
    torch.add(m1, m2, out=y[:, 0])
    torch.sub(m1, m2, out=y[:, 1])
    multiply(u[0], v[0].t(), y[:, 0], accumulate=True)
    multiply(u[3], v[3].t(), y[:, 1], accumulate=True)
    return y.view(shape.batch, -1, filters)[:, : shape.time_out].contiguous()


def backward(
    g: Tensor, x: Tensor | None, weight: Tensor | None, shape: Unfolding
) -> tuple[Tensor | None, Tensor | None]:
    """(dx (batch, time, C) if there is a weight, dW (N, 3, C) if there is an x) from g: (batch, time_out, N)."""
    q = _gradients(g, shape)
    dx = None if weight is None else _input_grad(q, _weights(weight), shape)
    return dx, None if x is None else _weight_grad(q, _inputs(x, shape))


def _num_tiles(shape: Unfolding) -> int:
    """Of one sequence. Behind one of odd length the last is half a tile: one more row of zeros."""
    return (shape.time_out + 1) // 2


def _inputs(x: Tensor, shape: Unfolding) -> Tensor:
    """u: (4, tiles, C)"""
    tiles, channels, end = _num_tiles(shape), x.shape[2], shape.left + shape.time
    padded = x.new_empty(shape.batch, 2 * tiles + 2, channels)
    padded[:, : shape.left] = 0
    padded[:, shape.left : end] = x
    padded[:, end:] = 0
    d0, d1, d2, d3 = (padded[:, first : first + 2 * tiles : 2] for first in range(4))
    u = x.new_empty(4, shape.batch, tiles, channels)
    torch.sub(d0, d2, out=u[0])
    torch.add(d1, d2, out=u[1])
    torch.sub(d2, d1, out=u[2])
    torch.sub(d3, d1, out=u[3])
    return u.view(4, -1, channels)


def _weights(weight: Tensor) -> Tensor:
    """v, transposed: (4, N, C)"""
    w0, w1, w2 = weight.unbind(2)
    v = weight.new_empty(4, *w0.shape)
    v[0], v[3] = w0, w2
    half = torch.add(w0, w2, out=v[2]).mul_(0.5)
    torch.add(half, w1, alpha=0.5, out=v[1])
    v[2].sub_(w1, alpha=0.5)
    return v


def _gradients(g: Tensor, shape: Unfolding) -> tuple[Tensor, ...]:
    """q: four of (tiles, N), the first and last of which are g itself"""
    if shape.time_out % 2:
        g = torch.nn.functional.pad(g, (0, 0, 0, 1))
    g0, g1 = g.reshape(-1, 2, g.shape[2]).unbind(1)
    return g0, g0 + g1, g0 - g1, g1


def _input_grad(q: tuple[Tensor, ...], v: Tensor, shape: Unfolding) -> Tensor:
    tiles, channels = _num_tiles(shape), v.shape[2]
    du = v.new_empty(4, shape.batch, tiles, channels)
    for i in range(4):
        multiply(q[i], v[i], du[i].view(-1, channels))
    # A row is the first of the four of one tile and the third of the tile before, or the second and the fourth.
    rows = v.new_empty(shape.batch, tiles + 1, 2, channels)
    even, odd = rows.unbind(2)
    even[:, :tiles], even[:, tiles], odd[:, 0] = du[0], 0, 0
    even[:, 1:] += du[1].add(du[2]).sub_(du[0])
    odd[:, 1:] = du[3]
    odd[:, :tiles] += du[1].sub_(du[2]).sub_(du[3])
    return rows.view(shape.batch, -1, channels)[:, shape.left : shape.left + shape.time].contiguous()


def _weight_grad(q: tuple[Tensor, ...], u: Tensor) -> Tensor:
    filters, channels = q[0].shape[1], u.shape[2]
    dweight = u.new_empty(filters, TAPS, channels)
    dw0, dw1, dw2 = dweight.unbind(1)
    dv1, dv2 = u.new_empty(2, filters, channels)
    multiply(q[1].t(), u[1], dv1)
    multiply(q[2].t(), u[2], dv2)
    torch.add(dv1, dv2, out=dw0).mul_(0.5)
    torch.sub(dv1, dv2, out=dw1).mul_(0.5)
    dw2.copy_(dw0)
    multiply(q[0].t(), u[0], dw0, accumulate=True)
    multiply(q[3].t(), u[3], dw2, accumulate=True)
    return dweight

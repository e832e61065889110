"""Scaled dot-product attention that never holds the scores, with the semantics of F.scaled_dot_product_attention.

    P = softmax(scale * q k^T + mask),   out = dropout(P) v,   scale = 1 / sqrt(E) unless given

Blocks of queries meet blocks of keys that stay in the cache. Forward keeps a running maximum and sum of each query
and saves the logarithm of the sum, lse; backward makes P = e^(scale * q k^T + mask - lse) anew. So memory is linear
in the length. Sums are fp32; where the CPU multiplies bf16, P and dS are rounded to it before their products.
Causality hides the keys after i from query i. A query that sees no key gives zeros, as in torch.
"""

import ctypes
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native
from ._random import random_bits
from ._tensors import KERNEL_DTYPES, kernel_dtype, needs_grad, pointer, takes_kernel
from ._twice import by_torch_for_graphs, gradients_of
from .dropout import scale as kept_scale
from .dropout import threshold

_BYTES = -1  # the mask_dtype of bool
_SIZES = ctypes.c_int64 * 7
_STRIDES = {count: ctypes.c_int64 * count for count in (16, 28)}  # of forward and of backward


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, dropout_p: float = 0.0, seed: int = 0,
) -> Tensor:  # fmt: skip
    """out in the dtype of q, computed in fp32 or wider: [..., L, Ev] from [..., L, E], [..., S, E] and [..., S, Ev]."""
    return _reference(q, k, v, mask, _options(q, scale, is_causal, dropout_p, seed), enable_gqa)


def _reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: "_Options", enable_gqa: bool) -> Tensor:
    scale, is_causal, seed, dropped, kept = options
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
    scores = q.to(wide) @ k.to(wide).transpose(-2, -1) * scale
    num_queries, num_keys = scores.shape[-2:]
    if is_causal:
        seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(sees_nothing, 0), dim=-1).masked_fill(sees_nothing, 0)
    if dropped:
        p = p * _keep_mask(p, dropped, seed) * kept
    return (p @ v.to(wide)).to(q.dtype)


def _keep_mask(p: Tensor, dropped: int, seed: int) -> Tensor:
    """Which probabilities are kept: random bits of (seed, head of all batches, query * keys + key modulo 2^32)."""
    num_queries, num_keys = p.shape[-2:]
    index = torch.arange(num_queries * num_keys, device="cpu") & 0xFFFFFFFF
    heads = [random_bits(seed, 0, head, index) for head in range(p.shape[:-2].numel())]
    bits = torch.stack(heads).view(p.shape)
    signed = bits - ((bits >> 31) << 32)
    return signed >= dropped - (1 << 31)


# What goes to the kernels beside tensors: scale, is_causal, seed, threshold and scale of dropout.
_Options = tuple[float, bool, int, int, float]


def _options(q: Tensor, scale: float | None, is_causal: bool, dropout_p: float, seed: int) -> _Options:
    dropped, kept = (threshold(dropout_p), kept_scale(dropout_p)) if dropout_p else (0, 1.0)
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale, is_causal, seed, dropped, kept


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: _Options, keep_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """(out, lse) of tensors of four dimensions; the memory of out is [batch, queries, heads, value_dim]."""
    batch, heads, queries, _ = q.shape
    out = q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32) if keep_lse else None
    _native.kernels.attention_forward(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), pointer(mask), out.data_ptr(), pointer(lse),
        _sizes(q, k, v), _strides(q, k, v, out, mask), *options, kernel_dtype(q), _mask_dtype(mask),
    )  # fmt: skip
    return out, lse


def _by_torch(ctx, dout):  # type: ignore[no-untyped-def]
    q, k, v, mask, _, _ = ctx.saved_tensors

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _reference(q, k, v, mask, ctx.options, enable_gqa=True)

    return *gradients_of(function, [q, k, v], dout, ctx.needs_input_grad[:3]), None, None


class AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask, options):  # type: ignore[no-untyped-def]
        out, lse = _forward(q, k, v, mask, options, keep_lse=True)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.options = options
        return out

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dout):  # type: ignore[no-untyped-def]
        q, k, v, mask, out, lse = ctx.saved_tensors
        dout = _kernel_layout(dout)
        delta = torch.empty_like(lse)
        gradients = [
            _gradient_like(x) if needed else None
            for x, needed in zip((q, k, v), ctx.needs_input_grad[:3], strict=True)
        ]
        _native.kernels.attention_backward(
            dout.data_ptr(), q.data_ptr(), k.data_ptr(), v.data_ptr(), pointer(mask), out.data_ptr(), lse.data_ptr(),
            delta.data_ptr(), *(pointer(x) for x in gradients),
            _sizes(q, k, v), _strides(q, k, v, out, mask, dout, *gradients),
            *ctx.options, kernel_dtype(q), _mask_dtype(mask),
        )  # fmt: skip
        return *gradients, None, None


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, dropout_p: float = 0.0,
) -> Tensor:  # fmt: skip
    """out: [..., Hq, L, Ev] from q: [..., Hq, L, E], k: [..., Hkv, S, E] and v: [..., Hkv, S, Ev].

    mask: broadcast to [..., Hq, L, S], bool (False hides the key) or floating point (added to the scores); with
    is_causal both hold. With enable_gqa Hkv may be a divisor of Hq. Dropout draws its seed from torch's default
    generator. Under torch.autocast the result has its dtype. Memory of the result: [..., L, Hq, Ev].

    What the kernels do not know goes to torch: other dtypes, broadcast batches, empty tensors, a mask with a gradient.
    """
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"attention: expected a probability dropout_p from 0 to 1, got {dropout_p}")
    if torch.is_autocast_enabled("cpu"):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
        mask = None if mask is None else _autocast(mask)
    if not (takes_kernel(q, k, v) and _takes_mask(mask) and _shapes_fit(q, k, v, enable_gqa)):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    shape = q.shape[:-1]
    if mask is not None:
        mask = _four_dimensions(_expand(mask, (*shape, k.shape[-2])))
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if dropout_p else 0
    options = _options(q, scale, is_causal, dropout_p, seed)
    q, k, v = _kernel_layout(q), _kernel_layout(k), _kernel_layout(v)
    if needs_grad(q, k, v):
        out = AttentionFunction.apply(q, k, v, mask, options)
    else:
        out, _ = _forward(q, k, v, mask, options, keep_lse=False)
    if len(shape) == 3:
        return out
    return out.reshape(*shape, v.shape[-1]) if len(shape) < 3 else out.unflatten(0, shape[:-2])


def _autocast(x: Tensor) -> Tensor:
    """As torch casts the arguments of attention: floating point on the CPU, but not fp64."""
    if not x.is_cpu or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype("cpu"))


def _takes_mask(mask: Tensor | None) -> bool:
    if mask is None:
        return True
    if mask.dtype == torch.bool:
        return type(mask) is Tensor and mask.is_cpu and mask.layout is torch.strided
    return mask.dtype in KERNEL_DTYPES and takes_kernel(mask) and not needs_grad(mask)


def _shapes_fit(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> bool:
    """Whether the kernels can take them; an error if nobody can."""
    if min(q.dim(), k.dim(), v.dim()) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "attention: expected q [..., L, E], k [..., S, E] and v [..., S, Ev],"
            f" got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; transpose or project them"
        )
    if not (q.numel() and k.numel() and v.numel()) or q.dim() != k.dim():
        return False
    if k.shape[:-2] != v.shape[:-2] or q.shape[:-3] != k.shape[:-3]:
        return False
    heads, kv_heads = (q.shape[-3], k.shape[-3]) if q.dim() > 2 else (1, 1)
    if enable_gqa and heads % kv_heads:
        raise ValueError(
            f"attention: expected a number of heads of k and v that divides that of q, {heads}, got {kv_heads};"
            " repeat heads"
        )
    return heads == kv_heads or enable_gqa


def _expand(mask: Tensor, scores: tuple[int, ...]) -> Tensor:
    try:
        return mask.expand(scores)
    except RuntimeError:
        raise ValueError(
            f"attention: expected a mask that broadcasts to {scores}, got {tuple(mask.shape)}; add dimensions of 1"
        ) from None


def _four_dimensions(x: Tensor) -> Tensor:
    if x.dim() == 4:
        return x
    return x.flatten(0, -4) if x.dim() > 4 else x[(None,) * (4 - x.dim())]


def _kernel_layout(x: Tensor) -> Tensor:
    x = _four_dimensions(x)
    return x if x.stride(-1) == 1 else x.contiguous()


def _gradient_like(x: Tensor) -> Tensor:
    dx = torch.empty_like(x)  # of the same layout, if x is dense in any order
    return dx if dx.stride(-1) == 1 else x.new_empty(x.shape)


def _mask_dtype(mask: Tensor | None) -> int:
    return _BYTES if mask is None or mask.dtype == torch.bool else kernel_dtype(mask)


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> ctypes.Array[ctypes.c_int64]:
    batch, heads, queries, dim = q.shape
    return _SIZES(batch, heads, k.shape[1], queries, k.shape[2], dim, v.shape[3])


def _strides(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None, *gradients: Tensor | None
) -> ctypes.Array[ctypes.c_int64]:
    """In the order of csrc/fullstride.h; zeros for what is absent."""
    strides = [*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]]
    strides += (0, 0, 0, 0) if mask is None else mask.stride()
    for x in gradients:
        strides += (0, 0, 0) if x is None else x.stride()[:3]
    return _STRIDES[len(strides)](*strides)

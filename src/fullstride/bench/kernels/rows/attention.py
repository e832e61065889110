from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ....ops.attention import attention
from ..row import Row, counted, forward_backward, name_of

BATCH, HEADS, DIM = 4, 12, 64
# One sequence alone of the longest: without AVX512-BF16 torch takes a minute for four of them in bf16.
BATCHES = {4096: 1}
TARGETS = {256: 3.0, 1024: 2.0, 4096: 2.0}  # of bf16, causal


def rows() -> Iterator[Row]:
    for dtype, name in [(torch.bfloat16, "bf16"), (torch.float32, "fp32")]:
        for length in (64, 256, 1024, 4096):
            target = TARGETS.get(length) if dtype == torch.bfloat16 else None
            yield _row(f"causal {name}", length, dtype, target, is_causal=True)
        padding = torch.arange(256) < torch.tensor([256, 200, 130, 77]).view(BATCH, 1, 1, 1)
        yield _row(f"padded {name}", 256, dtype, None, mask=padding)


def _row(
    case: str, length: int, dtype: torch.dtype, target: float | None, is_causal: bool = False,
    mask: Tensor | None = None,
) -> Row:  # fmt: skip
    """In the layout that the projections of a transformer leave: [batch, length, heads, dim], transposed."""
    batch = BATCHES.get(length, BATCH)
    q, k, v, gradient = torch.randn(4, batch, length, HEADS, DIM).to(dtype).transpose(2, 3)
    for x in (q, k, v):
        x.requires_grad_()

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask=mask, is_causal=is_causal)

    def torchs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)

    return Row(
        case=f"{case} forward+backward {batch} x {HEADS} x {length} x {DIM}",
        ours=forward_backward(ours, q, k, v, gradient=gradient),
        peers={"torch": forward_backward(torchs, q, k, v, gradient=gradient)},
        targets={} if target is None else {"torch": target},
        flops=counted(torchs, q, k, v),
        precision=name_of(dtype),
    )

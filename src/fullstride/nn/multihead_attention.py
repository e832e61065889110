"""torch.nn.MultiheadAttention by ops.linear and ops.attention.

torch's own forward calls scaled_dot_product_attention from inside a function that no TorchFunctionMode can look into,
so the module is done here. What the kernels do not serve goes to torch: returned attention weights, appended keys,
inputs without a batch, dropped-out weights of other widths.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..ops.attention import attention
from ..ops.linear import linear


class MultiheadAttention(nn.MultiheadAttention):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if need_weights or query.dim() != 3 or torch.compiler.is_compiling() or (is_causal and attn_mask is None):
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        q, k, v = self._project(query, key, value)
        mask = _merge_masks(attn_mask, key_padding_mask, q, k)
        causal = is_causal and key_padding_mask is None  # torch too then goes by the mask
        y = attention(
            q, k, v, None if causal else mask, is_causal=causal, dropout_p=self.dropout if self.training else 0.0
        )  # [batch, heads, length, width]
        y = y.transpose(1, 2).flatten(2)
        y = linear(y, self.out_proj.weight, self.out_proj.bias)
        return (y if self.batch_first else y.transpose(0, 1)), None

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as [batch, heads, length, width]."""
        weight, bias, width = self.in_proj_weight, self.in_proj_bias, self.embed_dim
        if query is key and key is value:
            parts = list(linear(query, weight, bias).chunk(3, dim=-1))
        else:
            biases: Any = (None,) * 3 if bias is None else bias.chunk(3)
            parts = [
                linear(x, w, b) for x, w, b in zip((query, key, value), weight.split(width), biases, strict=True)
            ]
        heads = [part.unflatten(-1, (self.num_heads, self.head_dim)) for part in parts]
        if not self.batch_first:
            heads = [part.transpose(0, 1) for part in heads]
        q, k, v = (part.transpose(1, 2) for part in heads)
        return q, k, v


def why_not(module: nn.MultiheadAttention) -> str | None:
    if not module._qkv_same_embed_dim:
        return "keys or values have another width than queries"
    if module.bias_k is not None or module.add_zero_attn:
        return "appends to the keys"
    return None


def _merge_masks(attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """One mask that broadcasts to [batch, heads, queries, keys]; True hides in torch's module, and shows here."""
    if attn_mask is not None:
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (q.shape[0], q.shape[1]))
        attn_mask = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
    if padding is None:
        return attn_mask
    padding = padding[:, None, None, :]
    if padding.dtype == torch.bool:
        padding = ~padding
    if attn_mask is None:
        return padding
    if attn_mask.dtype == torch.bool and padding.dtype == torch.bool:
        return attn_mask & padding
    return _additive(attn_mask, q) + _additive(padding, q)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, -torch.inf)

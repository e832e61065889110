"""The Llama language model: RMSNorm, rotary positions, SwiGLU, grouped-query attention, a head that may be tied.

    x = x + attention(norm(x)),  x = x + mlp(norm(x))           each layer
    logits = head(norm(x))

Rotary pairs are (i, i + head_dim / 2), as Hugging Face has them. Shapes: B sequences, T tokens, D wide, H heads of d.
Plain PyTorch: the stock side of a comparison loads this file by its path, so it must not import anything of Fullstride.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IGNORED = -100  # a target that does not count


class Rotary(nn.Module):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, H, T, d), cos and sin (T, d / 2): the pairs of each position turned by its angles."""
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.query = nn.Linear(width, heads * self.head_dim, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(heads * self.head_dim, width, bias=False)
        self.rotary = Rotary()

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, D) -> query (B, H, T, d), key and value (B, KV heads, T, d); query and key are turned."""
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        key = self.key(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        return self.rotary(query, cos, sin), self.rotary(key, cos, sin), value

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = self.project(x, cos, sin)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        return self.output(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=eps)
        self.attention = Attention(width, heads, kv_heads)
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = MLP(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, hidden: int, context: int,
        tied: bool = True, rope_base: float = 10000.0, eps: float = 1e-5, recompute: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, hidden, eps) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=eps)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        cos, sin = rotary_tables(context, width // heads, rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialise()

    def initialise(self) -> None:
        """Normal, 0.6 / sqrt(width) wide, which is 0.02 for 768 and learns faster than that in narrow models; what is
        added to the stream is smaller the more layers add to it."""
        everywhere = 0.6 / math.sqrt(self.embedding.embedding_dim)
        into_stream = everywhere / math.sqrt(2 * len(self.layers))
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(
                    parameter, std=into_stream if name.endswith(("output.weight", "down.weight")) else everywhere
                )

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> logits (B, T, vocabulary); or, given the token that follows each, the mean loss."""
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def rotary_tables(context: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin, (context, head_dim / 2): angle = position * base^(-2i / head_dim), computed in fp64."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def build(**arguments: int | float | bool) -> Llama:
    return Llama(**arguments)  # type: ignore[arg-type]


def loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """batch: tokens (B, T) and the token that follows each, (B, T)."""
    result: Tensor = model(*batch)
    return result

"""Models small enough to count by hand, and the smallest recipe."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullstride import recipes
from fullstride.recipes.config import Config

WORDS = [
    "--model.hidden", "16", "--data.num-samples", "256", "--data.num-features", "8", "--data.num-classes", "4",
    "--data.num-valid", "16", "--data.workers", "0", "--micro-batch", "32", "--accumulate", "2",
    "--schedule.warmup", "0", "--threads", "1", "--precision", "fp32",
]  # fmt: skip


def config(**changes: Any) -> Config:
    return recipes.get("mlp")().replace(
        model={"hidden": (16,)},
        data={"num_samples": 256, "num_features": 8, "num_classes": 4, "num_valid": 16, "workers": 0},
        **{
            "micro_batch": 32, "accumulate": 1, "schedule": {"warmup": 0}, "threads": 1, "precision": "fp32",
        } | changes,
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch() -> tuple[Tensor, Tensor]:
    return torch.zeros(32, 8), torch.zeros(32, dtype=torch.int64)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Rotary(nn.Module):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Layer(nn.Module):
    """A layer of a language model: width 16, 2 heads of 8, hidden 32."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.RMSNorm(16), nn.RMSNorm(16)
        self.query, self.key, self.value = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.output = nn.Linear(16, 16, bias=False)
        self.rotary = Rotary()
        self.gate, self.up = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16, bias=False)

    def attend(self, x: Tensor) -> Tensor:
        cos, sin = torch.ones(x.shape[1], 4), torch.zeros(x.shape[1], 4)
        query, key, value = (
            layer(x).view(*x.shape[:2], 2, 8).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query, key = self.rotary(query, cos, sin), self.rotary(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first_norm(x))
        return x + self.down(F.silu(self.gate(self.second_norm(x))) * self.up(x))

"""A language model of two blocks and its training, which the tests of prepare() share."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

PRECISIONS = ["fp32", "bf16"]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def attend(self, x):
        parts = self.qkv(F.layer_norm(x, x.shape[-1:])).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    """A language model of two blocks with a tied head."""

    def __init__(self, recompute: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embed.weight
        self.recompute = recompute

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if self.recompute == "modules":
                x = checkpoint(block, x, use_reentrant=False)
            elif self.recompute == "methods":
                x = x + checkpoint(block.attend, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


def make(recompute: str = "", seed: int = 0) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Model(recompute)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, 13, (4, 9), generator=torch.Generator().manual_seed(step))


def train(model, optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        tokens = batch(step)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())

"""A small real training run for numerics.py: a byte-level transformer on the source of Python's standard library."""

import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullstride import optim
from fullstride.ops.convert import split
from fullstride.optim.schedules import WarmupCosine

SEEDS = (0, 1, 2)
STEPS = 600
WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 2, 32, 8
RATE = 2e-3


@cache
def text() -> tuple[Tensor, Tensor]:
    """Bytes of the modules that lie at the top of the standard library, in the order of their names; 1/20 held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    data = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    cut = len(data) - len(data) // 20
    return data[:cut], data[cut:]


def windows(data: Tensor, count: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(data) - CONTEXT - 1, (count,), generator=generator)
    return torch.stack([data[s : s + CONTEXT + 1] for s in starts.tolist()]).long()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.float()


Setup = Callable[[Model], tuple[torch.optim.Optimizer, bool]]  # the optimizer, and whether autocast is on


def stock(model: Model) -> tuple[torch.optim.Optimizer, bool]:
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01), False


def stock_bf16(model: Model) -> tuple[torch.optim.Optimizer, bool]:
    return stock(model.bfloat16())


def split_with(state_precision: str) -> Setup:
    """What prepare(precision="bf16") does to the weights: matrices split, vectors fp32, forward under autocast."""

    def setup(model: Model) -> tuple[torch.optim.Optimizer, bool]:
        lows: dict[Tensor, Tensor] = {}
        for p in model.parameters():
            if p.dim() >= 2:
                p.data, lows[p] = split(p.detach())
        optimizer = optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, state_precision=state_precision)
        optimizer.use_split(lows)
        return optimizer, True

    return setup


FORMATS: dict[str, Setup] = {
    "fp32": stock,
    "split, fp32 states": split_with("fp32"),
    "split, bf16 states": split_with("bf16"),
    "split, 8-bit states": split_with("8bit"),
    "bf16 weights and states": stock_bf16,
}


def curve(name: str, seed: int) -> tuple[list[float], float]:
    """(the mean training loss of each ten steps, the loss on held-out text at the end)."""
    train, held_out = text()
    torch.manual_seed(seed)
    model = Model()
    optimizer, autocast = FORMATS[name](model)
    schedule = WarmupCosine(lr=RATE, warmup=STEPS // 20, steps=STEPS, floor=RATE / 100)
    generator = torch.Generator().manual_seed(seed)

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    losses = []
    for step in range(STEPS):
        schedule.set(optimizer, step)
        loss = loss_of(windows(train, BATCH, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        fixed = torch.Generator().manual_seed(99)
        final = sum(loss_of(windows(held_out, 64, fixed)).item() for _ in range(10)) / 10
    return [sum(losses[i : i + 10]) / 10 for i in range(0, STEPS, 10)], final

"""What a call costs beside what it computes: Python, the function mode, autograd, and what caches forget in between.

A small prepared Transformer takes steps on one thread, where nobody waits for another. What the formula of
prediction.py says of its products and passes is taken off, and the rest is divided by the calls that were counted of
it. It is not so small that Python and its tables stay in the caches: in no real step they do.
"""

import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import preparation
from . import replay, watching
from .prediction import Step, predict
from .rates import Measured

_WIDTH, _ROWS, _LAYERS, _STEPS = 128, 512, 2, 60


class _Layer(nn.Module):
    """As layers are: what is fused in others is fused here."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query, self.key, self.value = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
        self.output = nn.Linear(_WIDTH, _WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.dropout = nn.Dropout(0.1)

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).view(1, _ROWS, 2, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first_norm(x))
        return x + self.dropout(self.mlp(self.second_norm(x)))


def measure(precision: str, dtype: torch.dtype | None, peak: float) -> float:
    """Seconds a call. peak: GFLOP/s, of no weight here."""
    model = nn.Sequential(*(_Layer() for _ in range(_LAYERS)))
    x = torch.ones(1, _ROWS, _WIDTH, device="cpu")
    counted = watching.count(model, lambda twin, batch: twin(batch).sum(), x, dtype)
    step = Step(num_tensors=len(list(model.parameters())))
    threads = torch.get_num_threads()
    with replay.quiet():  # for as many threads as there are: who multiplies is a choice for the process
        optimizer = torch.optim.AdamW(model.parameters())
        model, fast = preparation.prepare(model, optimizer, precision=precision, threads=threads)
    try:
        torch.set_num_threads(1)
        known = predict(counted, step, Measured(dtype, peak)).seconds
        seconds = [_once(model, fast, x) for _ in range(_STEPS)]
    finally:
        torch.set_num_threads(threads)
        with replay.quiet():
            preparation.restore(model)
    # The lowest tenth: a step is long enough for others to take the core, the calls it is held against are not.
    taken = statistics.quantiles(seconds, n=10)[0]
    return max(0.0, taken - known) / (counted.num_asked + step.num_tensors)


def _once(model: nn.Module, optimizer: Any, x: Tensor) -> float:
    start = time.perf_counter()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    return time.perf_counter() - start

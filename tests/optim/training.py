"""A small model's parameters and runs of an optimizer over made-up gradients, which the optimizer tests share."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fullstride.ops import _formats as formats

SHAPES = [(33, 7), (7,), (), (5, 3, 2), (0, 4), (300,)]


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def set_gradients(params: Iterable[Tensor], step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = (scale * torch.randn(p.shape, generator=generator)).to(p.dtype)


def run(optimizer: Any, params: list[Any], steps: Iterable[int], scheduler: Any = None) -> None:
    for step in steps:
        set_gradients(params, step)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def assert_close(ours: Iterable[Tensor], others: Iterable[Tensor], tolerance: float = 1e-5) -> None:
    for a, b in zip(ours, others, strict=True):
        torch.testing.assert_close(a.detach().float(), b.detach().float(), rtol=tolerance, atol=tolerance)


def assert_equal(ours: Iterable[Tensor], others: Iterable[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, others, strict=True))


def split(params: list[torch.nn.Parameter]) -> dict[Any, Tensor]:
    """Makes fp32 parameters split ones, in place. Returns {parameter: lower half}, as use_split takes it."""
    lower_halves = {}
    for p in params:
        hi, lo = formats.split(p.detach())
        p.data = hi
        lower_halves[p] = lo
    return lower_halves


def whole(params: list[torch.nn.Parameter], optimizer: Any) -> list[Tensor]:
    """The exact fp32 weights of split parameters."""
    return [formats.merge(p.detach(), optimizer.state[p]["weight_lo"]) for p in params]

"""Inputs and comparisons that the kernel tests share."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16]
# Nothing, one, odd, prime, one past each vector width (4, 8, 16 lanes) and each tile, and large.
SIZES = [0, 1, 2, 3, 5, 7, 9, 17, 31, 33, 65, 127, 257, 509, 513, 1025, 4099, 70001]
ROW_SHAPES = [(0, 8), (1, 1), (3, 1), (2, 5), (5, 7), (7, 15), (4, 17), (3, 33), (9, 64), (3, 513), (67, 999)]

for_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def strided(x: Tensor) -> Tensor:
    """The same values in a view that is not contiguous: every second column of a wider tensor."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 77.0, dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def off_by_one(x: Tensor) -> Tensor:
    """The same values, contiguous, one element away from an aligned address."""
    storage = torch.zeros(x.numel() + 1, dtype=x.dtype)
    storage[1:] = x.flatten()
    return storage[1:].view(x.shape)


def gradients(function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> tuple[Any, Any]:
    """Outputs of function(*inputs) and the gradients of a fixed weighting of them, one that bf16 holds exactly."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    weights = [random(*out.shape, dtype=torch.bfloat16, seed=9 + i).to(out.dtype) for i, out in enumerate(outputs)]
    loss: Any = sum((out * weight).sum() for out, weight in zip(outputs, weights, strict=True))
    return outputs, torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None])


def assert_close(actual: Tensor, expected: Tensor, ulps: float = 8, floor: float = 1.0) -> None:
    """Equal within `ulps` roundings of the actual dtype at the size of the largest finite expected value, or `floor`.

    NaN and infinity must stand in the same places.
    """
    assert actual.shape == expected.shape
    assert torch.equal(actual.isnan(), expected.isnan()), "NaN in other places"
    assert torch.equal(actual.isinf(), expected.isinf()), "infinity in other places"
    assert torch.equal(actual[expected.isinf()].double(), expected[expected.isinf()].double())
    finite = expected.isfinite()
    if not finite.any():
        return
    error = (actual[finite].double() - expected[finite].double()).abs().max().item()
    rounding = torch.finfo(actual.dtype).eps * max(expected[finite].abs().max().item(), floor)
    assert error <= ulps * rounding, f"error {error:.3g} is {error / rounding:.1f} roundings"


def assert_each_close(actual: Tensor, expected: Tensor, ulps: float = 8) -> None:
    """The same, each value at its own size or 1: among huge values a wrong small one is seen."""
    assert actual.shape == expected.shape
    for i, (a, e) in enumerate(zip(actual.flatten(), expected.flatten(), strict=True)):
        try:
            assert_close(a, e, ulps)
        except AssertionError as error:
            raise AssertionError(f"at {i}: {a.item()} instead of {e.item()}: {error}") from None

"""Loss scaling for fp16: gradients times a scale, so that small ones do not become zero in 16 bits.

    scaler = LossScaler()
    output = scale_gradient(model(x), scaler)   # backward multiplies what enters the model
    loss(output).backward()
    optimizer.scaler = scaler                   # its step divides, skips on overflow and adapts the scale
    optimizer.step()

The loss itself is not scaled: what the user prints is the loss. Micikevicius et al., https://arxiv.org/abs/1710.03740.
"""

import math
from typing import Any

import torch
from torch import Tensor

MAX_SCALE = 2.0**32  # gradients of 2^-32 are in reach of fp32, where a larger scale only overflows


class LossScaler:
    """The scale: grows after good steps in a row, shrinks when a gradient was not finite, never below 1.

    By default it is doubled after 2000 steps, and halved.
    """

    def __init__(
        self, scale: float = 1024.0, growth_interval: int = 2000, growth: float = 2.0, backoff: float = 0.5
    ) -> None:
        if not 1 <= scale <= MAX_SCALE or growth_interval < 1:
            raise ValueError(
                f"expected a scale from 1 to 2^32 and an interval of at least 1, got {scale} and {growth_interval}"
            )
        if not 1 <= growth < math.inf or not 0 < backoff < 1:
            raise ValueError(f"expected growth of 1 or more and backoff between 0 and 1, got {growth} and {backoff}")
        self.scale = float(scale)
        self.growth_interval = int(growth_interval)
        self.growth, self.backoff = float(growth), float(backoff)
        self.good_steps = 0

    def update(self, finite: bool) -> None:
        """After each step, taken or skipped."""
        if not finite:
            self.scale, self.good_steps = max(self.scale * self.backoff, 1.0), 0
            return
        self.good_steps += 1
        if self.good_steps >= self.growth_interval:
            self.scale, self.good_steps = min(self.scale * self.growth, MAX_SCALE), 0

    def state_dict(self) -> dict[str, Any]:
        names = ("scale", "growth_interval", "growth", "backoff", "good_steps")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.growth_interval = float(state["scale"]), int(state["growth_interval"])
        self.growth, self.backoff = float(state.get("growth", 2.0)), float(state.get("backoff", 0.5))
        self.good_steps = int(state["good_steps"])

    def __repr__(self) -> str:
        return f"LossScaler({', '.join(f'{name}={value:g}' for name, value in self.state_dict().items())})"


class ScaleGradientFunction(torch.autograd.Function):
    @staticmethod
    def forward(tensor, scaler):  # type: ignore[no-untyped-def]
        # Trainers change losses in place, which torch forbids for a view out of a Function; larger outputs stay views.
        return tensor.clone() if tensor.dim() == 0 else tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.scaler = inputs[1]

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * ctx.scaler.scale, None


def scale_gradient(tensor: Tensor, scaler: LossScaler | None) -> Tensor:
    """The tensor as it is; its gradient is multiplied by the scale of the moment when backward comes by."""
    if scaler is None or not tensor.requires_grad:
        return tensor
    return ScaleGradientFunction.apply(tensor, scaler)

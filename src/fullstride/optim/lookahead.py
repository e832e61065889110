"""Lookahead: every k steps the weights go back part of the way to where they were k steps ago.

    slow = slow + alpha * (weight - slow), weight = slow        every k-th step

Around our optimizers it costs no pass of its own: the kernel interpolates while it has the weight in hand. Around any
other torch.optim.Optimizer it works on the weights after the step. Zhang et al., https://arxiv.org/abs/1907.08610.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._base import OWN_KEY, Optimizer


class Lookahead(torch.optim.Optimizer):
    """Lookahead around an optimizer, whose groups and state it shows as its own; schedulers take it.

    A parameter is interpolated at a k-th step if it has a gradient then, else at the next one. What is not known here
    (clip, scaler, last_grad_norm, use_split ...) is the inner optimizer's.
    """

    optimizer: torch.optim.Optimizer
    counts: dict[str, Any]
    slow: dict[Tensor, Tensor]  # empty when the inner optimizer keeps them

    def __init__(self, optimizer: torch.optim.Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"expected an optimizer to look ahead with, got {type(optimizer).__name__}")
        if isinstance(optimizer, Lookahead) or getattr(optimizer, "lookahead", None) is not None:
            raise ValueError("expected an optimizer without Lookahead, got one that has it; wrap it once")
        if not 0 < alpha <= 1 or k < 1 or k != int(k):
            raise ValueError(f"expected alpha above 0 and at most 1 and k of at least 1, got alpha={alpha} and k={k}")
        counts = {"alpha": float(alpha), "k": int(k), "step": 0}
        # Not __init__ of the base, which would make groups of its own.
        self.__setstate__({"optimizer": optimizer, "counts": counts, "slow": {}})
        self._fold()

    def _fold(self) -> None:
        """Ours keep the slow weights with their states from now on."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.lookahead = self.counts  # the same dict: it counts there
            for p, slow in self.slow.items():
                self.optimizer.state[p]["slow"] = slow
            self.slow = {}
            self.optimizer._slots = None

    def convert(self, function: Callable[[torch.optim.Optimizer], torch.optim.Optimizer]) -> None:
        """Another optimizer inside, made from the one that is there."""
        self.optimizer = function(self.optimizer)
        self._fold()

    # ---- what is the inner optimizer's ---------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "optimizer" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = vars(self).get("optimizer")
        shared = name in ("param_groups", "state", "defaults") or name in Optimizer.__annotations__
        if shared and inner is not None:
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    # ---- a step --------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if isinstance(self.optimizer, Optimizer):
            return self.optimizer.step(closure)
        params = [p for group in self.param_groups for p in group["params"]]
        for p in params:
            if p not in self.slow:
                self.slow[p] = p.detach().clone(memory_format=torch.preserve_format).to(_slow_dtype(p))
        loss = self.optimizer.step(closure)
        self.counts["step"] += 1
        if self.counts["step"] % self.counts["k"] == 0:
            self._interpolate([p for p in params if p.grad is not None])
        return loss

    @torch.no_grad()
    def _interpolate(self, params: list[Tensor]) -> None:
        if not params:
            return
        slow = [self.slow[p] for p in params]
        fast = [p.detach().to(s.dtype) for p, s in zip(params, slow, strict=True)]
        torch._foreach_lerp_(slow, fast, self.counts["alpha"])
        torch._foreach_copy_(params, slow)

    # ---- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, with Lookahead's own under "fullstride"."""
        packed = self.optimizer.state_dict()
        if isinstance(self.optimizer, Optimizer):
            return packed
        positions = {p: i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        slow = {positions[p]: value for p, value in self.slow.items()}
        return {**packed, OWN_KEY: {"lookahead": dict(self.counts), "slow": slow}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
        if isinstance(self.optimizer, Optimizer):
            return
        own = state_dict.get(OWN_KEY) or {}
        self.counts.update(own.get("lookahead") or {"step": 0})
        params = [p for group in self.param_groups for p in group["params"]]
        self.slow = {params[i]: value.clone() for i, value in (own.get("slow") or {}).items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "counts": self.counts, "slow": self.slow}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        super().__setstate__({})

    def __repr__(self) -> str:
        return f"Lookahead(alpha={self.counts['alpha']}, k={self.counts['k']}) of {self.optimizer!r}"


def _slow_dtype(p: Tensor) -> torch.dtype:
    """bf16 would lose alpha * (weight - slow) when it is small."""
    return torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype

"""What torch.optim lacks of a recipe, as a good engineer writes it for stock PyTorch: LAMB, and Lookahead.

    u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay * weight
    weight = weight - lr * ratio * u,  ratio = |weight| / |u| over the tensor, 1 where one of the norms is 0

Tensor by tensor and in place where it can be, as torch.optim does it on CPUs, where torch._foreach_ is the same loop.
`compiled`: torch.compile makes one pass of all that belongs to an element; so LAMB needs no fused form.
The process of stock PyTorch loads this file by its path: it must not import anything of Fullstride.
"""

from collections.abc import Callable, Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """You et al., https://arxiv.org/abs/1904.00962."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        compiled: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._direction: Callable[..., tuple[Tensor, ...]] = (
            torch.compile(_direction, dynamic=True) if compiled else _direction
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (beta1, beta2), eps = group["betas"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["step"] += 1
                # Both corrections of the bias in the denominator: a pass less. Tensors, or each step would be compiled.
                first = 1 - beta1 ** state["step"]
                scale, offset = torch.tensor(first / sqrt(1 - beta2 ** state["step"])), torch.tensor(first * eps)
                u, *norms = self._direction(
                    p, p.grad, state["m"], state["v"], beta1, beta2, scale, offset, group["weight_decay"]
                )
                of_weight, of_u = (norm.item() for norm in norms)
                ratio = of_weight / of_u if of_weight > 0 and of_u > 0 else 1.0
                p.add_(u, alpha=-group["lr"] * ratio)


def _direction(
    p: Tensor, grad: Tensor, m: Tensor, v: Tensor, beta1: float, beta2: float,
    scale: Tensor, offset: Tensor, weight_decay: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """u, the norm of the weight and that of u; m and v are renewed."""
    m.lerp_(grad, 1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    u = (m / v.sqrt().mul_(scale).add_(offset)).add_(p, alpha=weight_decay)
    return u, torch.linalg.vector_norm(p), torch.linalg.vector_norm(u)


class Lookahead:
    """Every k-th step the weights go back part of the way: slow += alpha (weight - slow), weight = slow.

    Zhang et al., https://arxiv.org/abs/1907.08610.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        self.optimizer, self.alpha, self.k, self.num_steps = optimizer, alpha, k, 0
        self.slow = [(p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"]]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.num_steps += 1
        if self.num_steps % self.k == 0:
            for p, slow in self.slow:
                if p.grad is not None:  # a frozen one stays
                    slow.lerp_(p, self.alpha)
                    p.copy_(slow)

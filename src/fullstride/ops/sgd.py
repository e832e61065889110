"""SGD with momentum over a list of tensors, one call a step, as torch.optim.SGD computes it.

    g = grad_scale * gradient + weight_decay * weight
    m = g at the first step, then momentum * m + (1 - dampening) * g
    g = g + momentum * m with Nesterov, else m
    weight = weight - lr * g

Without momentum there is no m. Weights and states may be kept in fewer bits: see _formats.py.
Sutskever et al., http://proceedings.mlr.press/v28/sutskever13.html; Lookahead: https://arxiv.org/abs/1907.08610.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ._optimizer import ParamList, Slot, check_groups, run_step


class SGDGroup(ctypes.Structure):
    """fs_sgd_group: hyperparameters of a group of tensors, changed by assignment between steps."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("lr", "momentum", "dampening", "weight_decay")),
        *((name, ctypes.c_int32) for name in ("nesterov", "maximize")),
    ]

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"expected momentum > 0 and dampening 0 with Nesterov, got momentum={momentum}, dampening={dampening}"
            )
        super().__init__(lr, momentum, dampening, weight_decay, nesterov, maximize)


def sgd_reference(
    slot: Slot,
    gradient: Tensor,
    group: Any,
    step: int,
    grad_scale: float = 1.0,
    lookahead_alpha: float = 0.0,
    seed: int = 0,
) -> None:
    """Step number `step` of one tensor, in place, whatever its formats."""
    weight, m = slot.load_weight(), slot.load_state("m")
    g = gradient.float() * (-grad_scale if group.maximize else grad_scale)
    if group.weight_decay:
        g = g + group.weight_decay * weight
    if group.momentum:
        assert m is not None
        m = g if step == 1 else group.momentum * m + (1 - group.dampening) * g
        slot.store_states(seed, step, m=m)
        g = g + group.momentum * m if group.nesterov else m
    slot.store_weight(slot.look_ahead(weight - group.lr * g, lookahead_alpha), seed, step)


def sgd_step(
    tensors: ParamList,
    gradients: Sequence[Tensor | None] | None,
    groups: Sequence[SGDGroup],
    grad_scale: float = 1.0,
    lookahead_alpha: float = 0.0,
    seed: int = 0,
    skip: bool = False,
) -> None:
    """One step of every tensor that has a gradient. `skip` (gradients not finite): nothing changes, no step counts."""
    if skip:
        return
    check_groups("sgd_step", groups, SGDGroup)
    for i, group in enumerate(groups):
        if group.momentum and tensors.lacks(i, "m"):
            raise ValueError('expected m for a group with momentum; make the slot with states=("m",)')
    run_step("sgd_step", sgd_reference, tensors, gradients, groups, grad_scale, lookahead_alpha, seed)

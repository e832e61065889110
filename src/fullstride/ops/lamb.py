"""LAMB over a list of tensors, one call a step: Adam's update, scaled for each tensor to the size of its weights.

    g = grad_scale * gradient
    m = m + (1 - beta1) (g - m)
    v = beta2 v + (1 - beta2) g^2
    u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay * weight
    weight = weight - lr * ratio * u,  ratio = |weight| / |u| over the tensor, 1 where one of the norms is 0

u is computed from the states as they are stored, rounded where their format is narrow, so that the step has the length
lr * |weight| in every format. Weights and states may be kept in fewer bits: see _formats.py.
You et al., https://arxiv.org/abs/1904.00962; Lookahead: https://arxiv.org/abs/1907.08610.
"""

import ctypes
from collections.abc import Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from ._optimizer import ParamList, Slot, check_groups, run_step


class LAMBGroup(ctypes.Structure):
    """fs_lamb_group: hyperparameters of a group of tensors, changed by assignment between steps."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
        *((name, ctypes.c_int32) for name in ("maximize", "reserved")),
    ]

    def __init__(
        self,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, beta1, beta2, eps, weight_decay, maximize, 0)


def lamb_reference(
    slot: Slot,
    gradient: Tensor,
    group: Any,
    step: int,
    grad_scale: float = 1.0,
    lookahead_alpha: float = 0.0,
    seed: int = 0,
) -> None:
    """Step number `step` of one tensor, in place, whatever its formats."""
    weight, m, v = slot.load_weight(), slot.load_state("m"), slot.load_state("v")
    assert m is not None
    assert v is not None
    roots = slot.state_format == "8bit"
    g = gradient.float() * (-grad_scale if group.maximize else grad_scale)
    m = m + (1 - group.beta1) * (g - m)
    v = group.beta2 * (v * v if roots else v) + (1 - group.beta2) * g * g
    slot.store_states(seed, step, m=m, v=v.sqrt() if roots else v)
    m, v = slot.load_state("m"), slot.load_state("v")
    assert m is not None
    assert v is not None
    denominator = (v if roots else v.sqrt()) / sqrt(1 - group.beta2**step) + group.eps
    u = m / (1 - group.beta1**step) / denominator + group.weight_decay * weight
    weight_norm, u_norm = weight.double().norm().item(), u.double().norm().item()
    ratio = weight_norm / u_norm if weight_norm != 0 and u_norm != 0 else 1.0
    slot.store_weight(slot.look_ahead(weight - group.lr * ratio * u, lookahead_alpha), seed, step)


def lamb_step(
    tensors: ParamList,
    gradients: Sequence[Tensor | None] | None,
    groups: Sequence[LAMBGroup],
    grad_scale: float = 1.0,
    lookahead_alpha: float = 0.0,
    seed: int = 0,
    skip: bool = False,
) -> None:
    """One step of every tensor that has a gradient. `skip` (gradients not finite): nothing changes, no step counts."""
    if skip:
        return
    check_groups("lamb_step", groups, LAMBGroup)
    if any(tensors.lacks(i, "m", "v") for i in range(len(groups))):
        raise ValueError('expected m and v; make the slot with states=("m", "v")')
    run_step("lamb_step", lamb_reference, tensors, gradients, groups, grad_scale, lookahead_alpha, seed)

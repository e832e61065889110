"""Adam and AdamW over a list of tensors, one call a step.

    g = grad_scale * gradient  (+ weight_decay * weight for Adam)
    m = m + (1 - beta1) (g - m)
    v = beta2 v + (1 - beta2) g^2
    weight = weight (1 - lr weight_decay)  (AdamW)  - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

With AMSGrad the root is that of the largest v so far. Weights and states may be kept in fewer bits: see _formats.py.
Kingma and Ba, https://arxiv.org/abs/1412.6980; Loshchilov and Hutter, https://arxiv.org/abs/1711.05101; Reddi, Kale and
Kumar, https://openreview.net/forum?id=ryQu7f-RZ; Lookahead: https://arxiv.org/abs/1907.08610.
"""

import ctypes
from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ._optimizer import ParamList, Slot, check_groups, run_step


class AdamGroup(ctypes.Structure):
    """fs_adam_group: hyperparameters of a group of tensors, changed by assignment between steps."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
        *((name, ctypes.c_int32) for name in ("decoupled", "amsgrad", "maximize", "reserved")),
    ]

    def __init__(
        self,
        lr: float = 1e-4,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad, maximize, 0)


def adam_reference(
    slot: Slot,
    gradient: Tensor,
    group: Any,
    step: int,
    grad_scale: float = 1.0,
    lookahead_alpha: float = 0.0,
    seed: int = 0,
) -> None:
    """Step number `step` of one tensor, in place, whatever its formats."""
    weight, m, v, v_max = slot.load_weight(), *(slot.load_state(name) for name in ("m", "v", "v_max"))
    assert m is not None
    assert v is not None
    roots = slot.state_format == "8bit"
    g = gradient.float() * (-grad_scale if group.maximize else grad_scale)
    if not group.decoupled and group.weight_decay:
        g = g + group.weight_decay * weight
    m = m + (1 - group.beta1) * (g - m)
    v = group.beta2 * (v * v if roots else v) + (1 - group.beta2) * g * g
    root = v.sqrt()
    if group.amsgrad:
        assert v_max is not None
        v_max = torch.maximum(v_max, root if roots else v)
        denominator = v_max if roots else v_max.sqrt()
    else:
        v_max, denominator = None, root
    denominator = denominator / sqrt(1 - group.beta2**step) + group.eps
    keep = 1 - group.lr * group.weight_decay if group.decoupled else 1.0
    weight = weight * keep - group.lr / (1 - group.beta1**step) * (m / denominator)
    slot.store_states(seed, step, m=m, v=root if roots else v, v_max=v_max)
    slot.store_weight(slot.look_ahead(weight, lookahead_alpha), seed, step)


def adam_step(
    tensors: ParamList,
    gradients: Sequence[Tensor | None] | None,
    groups: Sequence[AdamGroup],
    grad_scale: float = 1.0,
    lookahead_alpha: float = 0.0,
    seed: int = 0,
    skip: bool = False,
) -> None:
    """One step of every tensor that has a gradient. `skip` (gradients not finite): nothing changes, no step counts."""
    if skip:
        return
    check_groups("adam_step", groups, AdamGroup)
    for i, group in enumerate(groups):
        if tensors.lacks(i, "m", "v", "v_max") if group.amsgrad else tensors.lacks(i, "m", "v"):
            raise ValueError('expected m and v, with AMSGrad v_max too; make the slot with states=("m", "v", "v_max")')
    run_step("adam_step", adam_reference, tensors, gradients, groups, grad_scale, lookahead_alpha, seed)

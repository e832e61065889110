"""LAMB, for large batches: see ops/lamb.py for the formula and the paper."""

from typing import Any

from ..ops.lamb import LAMBGroup, lamb_step
from ._base import Optimizer, check_at_least_zero, check_betas
from ._slots import Names


class Lamb(Optimizer):
    """LAMB. Weights that begin at zero get Adam's step until they have a size. See Optimizer for what is not a
    hyperparameter."""

    step_kernel = lamb_step

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        maximize: bool = False,
        state_precision: str = "fp32",
        clip: float | None = None,
        skip_nonfinite: bool | None = None,
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, state_precision, clip, skip_nonfinite, seed)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_zero(group, "lr", "eps", "weight_decay")
        check_betas(group)

    def state_names(self, group: dict[str, Any]) -> Names:
        return (("m", "exp_avg"), ("v", "exp_avg_sq"))

    def kernel_group(self, group: dict[str, Any]) -> LAMBGroup:
        beta1, beta2 = group["betas"]
        lr, eps, weight_decay = (float(group[name]) for name in ("lr", "eps", "weight_decay"))
        return LAMBGroup(lr, float(beta1), float(beta2), eps, weight_decay, group["maximize"])

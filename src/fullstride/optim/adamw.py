"""Adam and AdamW, as torch.optim computes them: see ops/adam.py for the formula and the papers."""

from typing import Any

from ..ops.adam import AdamGroup, adam_step
from ._base import Optimizer, check_at_least_zero, check_betas
from ._slots import Names

_MOMENTS: Names = (("m", "exp_avg"), ("v", "exp_avg_sq"))
_AMSGRAD: Names = (*_MOMENTS, ("v_max", "max_exp_avg_sq"))


class Adam(Optimizer):
    """Adam; weight decay, if any, is added to the gradient.

    state_precision: "fp32", "bf16" or "8bit", for 8, 4 or 2 bytes of state a parameter. clip: the norm that all
    gradients together may have. See Optimizer for the rest.
    """

    step_kernel = adam_step

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        state_precision: str = "fp32",
        clip: float | None = None,
        skip_nonfinite: bool | None = None,
        seed: int = 0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults, state_precision, clip, skip_nonfinite, seed)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_zero(group, "lr", "eps", "weight_decay")
        check_betas(group)

    def state_names(self, group: dict[str, Any]) -> Names:
        return _AMSGRAD if group["amsgrad"] else _MOMENTS

    def kernel_group(self, group: dict[str, Any]) -> AdamGroup:
        beta1, beta2 = group["betas"]
        return AdamGroup(
            float(group["lr"]),
            float(beta1),
            float(beta2),
            float(group["eps"]),
            float(group["weight_decay"]),
            group["decoupled_weight_decay"],
            group["amsgrad"],
            group["maximize"],
        )


class AdamW(Adam):
    """Adam with weight decay on the weights themselves."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        state_precision: str = "fp32",
        clip: float | None = None,
        skip_nonfinite: bool | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            state_precision=state_precision,
            clip=clip,
            skip_nonfinite=skip_nonfinite,
            seed=seed,
            decoupled_weight_decay=True,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True  # whatever was loaded

"""SGD with momentum, as torch.optim computes it: see ops/sgd.py for the formula and the paper."""

from typing import Any

from ..ops.sgd import SGDGroup, sgd_step
from ._base import Optimizer, check_at_least_zero
from ._slots import Names


class SGD(Optimizer):
    """SGD; without momentum it has no state. See Optimizer for what is not a hyperparameter."""

    step_kernel = sgd_step

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        state_precision: str = "fp32",
        clip: float | None = None,
        skip_nonfinite: bool | None = None,
        seed: int = 0,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults, state_precision, clip, skip_nonfinite, seed)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_zero(group, "lr", "momentum", "weight_decay")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(
                f"expected momentum above 0 and dampening 0 with Nesterov, got momentum={group['momentum']} and"
                f" dampening={group['dampening']}"
            )

    def state_names(self, group: dict[str, Any]) -> Names:
        return (("m", "momentum_buffer"),) if group["momentum"] else ()

    def kernel_group(self, group: dict[str, Any]) -> SGDGroup:
        return SGDGroup(
            float(group["lr"]),
            float(group["momentum"]),
            float(group["dampening"]),
            float(group["weight_decay"]),
            group["nesterov"],
            group["maximize"],
        )

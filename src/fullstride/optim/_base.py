"""What the optimizers share: one kernel call a step for all parameters of all groups, and everything around it.

Around it: the norm of the gradients where it is wanted, clipping and loss scale as a factor inside the step, steps that
are skipped because a gradient is not finite, Lookahead, and states that keep their formats when they are saved and
loaded.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..ops._gradient_norms import want
from ..ops.grads import scale_
from ._slots import STATE_DTYPES, Names, SlotList, check_parameter
from .main_gradients import drop_main_gradients, keep_main_gradients
from .scaling import LossScaler

OWN_KEY = "fullstride"
"""Of state_dict(): what torch's optimizers have no place for. They ignore it."""
_OWN = ("state_precision", "clip", "skip_nonfinite", "seed", "skipped_steps", "last_grad_norm", "scaler", "lookahead")


class Optimizer(torch.optim.Optimizer):
    """The base of AdamW, Adam, SGD and Lamb. A subclass names its kernel, its states and its hyperparameters.

    clip: the norm of all gradients is brought down to this; last_grad_norm is the norm before.
    skip_nonfinite: a step with NaN or infinity in a gradient changes nothing and is counted in skipped_steps. None:
        where the norm, which tells, is taken anyway: with clip or a scaler. Else it is one more read of the gradients,
        which torch does not make either. False: never, except with a scaler, which lives on it.
    last_grad_norm: None where no norm was taken.
    seed: of stochastic rounding. scaler: of gradients that were scaled, see scaling.py.
    """

    step_kernel: ClassVar[Callable[..., None]]
    state_precision: str
    clip: float | None
    skip_nonfinite: bool | None
    seed: int
    skipped_steps: int
    last_grad_norm: float | None
    scaler: LossScaler | None
    lookahead: dict[str, Any] | None
    combine_norms: Callable[[float], float] | None = None
    """Of several processes with parameters of their own: from the norm of these to that of all."""
    number_of: Callable[[Tensor], int] | None = None
    """Of the same: which parameter of all it is. Random bits of rounding follow from that."""

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        state_precision: str = "fp32",
        clip: float | None = None,
        skip_nonfinite: bool | None = None,
        seed: int = 0,
    ) -> None:
        self.set_options(state_precision, clip, skip_nonfinite, seed)
        super().__init__(params, defaults)

    def set_options(self, state_precision: str, clip: float | None, skip_nonfinite: bool | None, seed: int) -> None:
        """What is not a hyperparameter of a group, and counters at their start."""
        check_options(state_precision, clip)
        self.state_precision, self.clip, self.skip_nonfinite, self.seed = state_precision, clip, skip_nonfinite, seed
        if clip is not None or skip_nonfinite:
            want()  # gradients are summed while they are written
        self.skipped_steps, self.last_grad_norm, self.scaler, self.lookahead = 0, None, None, None
        self._slots: SlotList | None = None
        self._unscaled = False
        self._spare_halves: dict[Tensor, Tensor] = {}

    # ---- for subclasses ------------------------------------------------------------------------------------------

    def state_names(self, group: dict[str, Any]) -> Names:
        """The states that the kernel needs for a parameter of this group, as things stand now."""
        raise NotImplementedError

    def kernel_group(self, group: dict[str, Any]) -> Any:
        """The hyperparameters of the group, as the kernel takes them."""
        raise NotImplementedError

    def check_group(self, group: dict[str, Any]) -> None:
        """ValueError for hyperparameters that make no sense."""
        check_at_least_zero(group, "lr", "weight_decay")

    # ---- a step --------------------------------------------------------------------------------------------------

    @torch._disable_dynamo  # a compiled training step calls this as it is: no graph sees through ctypes
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        names = [self.state_names(group) for group in groups]
        if self._slots is None or not self._slots.is_current(groups, self.state, names):
            self._slots = self._make_slots(names)
        slots = self._slots
        slots.take_gradients()
        scale = 1.0 if self.scaler is None or self._unscaled else 1.0 / self.scaler.scale
        factor, finite = self._measure(slots, scale)
        self._unscaled = False
        if self.scaler is not None:
            self.scaler.update(finite)
        if not finite:
            self.skipped_steps += 1
            slots.tensors.drop_gradients()
            return loss
        slots.begin_step()
        type(self).step_kernel(
            slots.tensors,
            None,  # those just taken
            [self.kernel_group(group) for group in groups],
            grad_scale=scale * factor,
            lookahead_alpha=self._lookahead_alpha(),
            seed=self.seed,
        )
        slots.end_step()
        return loss

    @torch.no_grad()
    def _make_slots(self, names: list[Names]) -> SlotList:
        keep_main_gradients(_all(self.param_groups))  # those that did not require a gradient before
        return SlotList(
            self.param_groups, self.state, names, self.state_precision, self.lookahead is not None, self.number_of
        )

    def _measure(self, slots: SlotList, scale: float) -> tuple[float, bool]:
        """(the factor of clipping, whether the step is to be taken), from the norm of the gradients if it is wanted."""
        if self.clip is None and not self.skip_nonfinite and self.scaler is None:
            self.last_grad_norm = None
            return 1.0, True
        norm = slots.tensors.grad_norm()
        self.last_grad_norm = norm = scale * (norm if self.combine_norms is None else self.combine_norms(norm))
        finite = math.isfinite(norm)
        factor = 1.0 if self.clip is None or not finite else min(1.0, self.clip / (norm + 1e-6))
        return factor, finite or (self.skip_nonfinite is False and self.scaler is None)

    def _lookahead_alpha(self) -> float:
        """Counts the step, and gives Lookahead's alpha when it is due."""
        if self.lookahead is None:
            return 0.0
        self.lookahead["step"] += 1
        return float(self.lookahead["alpha"]) if self.lookahead["step"] % self.lookahead["k"] == 0 else 0.0

    def unscale_(self) -> None:
        """Takes the loss scale out of p.grad now, for those who look at gradients before the step."""
        if self.scaler is None or self._unscaled:
            return
        scale_([p.grad for p in _all(self.param_groups) if p.grad is not None], 1 / self.scaler.scale)
        self._unscaled = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._unscaled = False
        super().zero_grad(set_to_none)

    def to_torch(self) -> Any:
        """The same object as torch's optimizer of that name: see torch_optimizers.py."""
        from .torch_optimizers import to_torch  # which needs the subclasses of this class

        return to_torch(self)

    # ---- parameters ----------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict) and isinstance(param_group.get("params"), Iterable):
            given = param_group["params"]
            params = [given] if isinstance(given, Tensor) else given if isinstance(given, set) else list(given)
            tensors = [p[1] if isinstance(p, tuple) else p for p in params]
            if not tensors:
                raise ValueError(f"expected parameters in group {len(self.param_groups)}, got none; leave it out")
            if len({id(p) for p in tensors}) != len(tensors):
                raise ValueError(f"expected each parameter once, got one twice in group {len(self.param_groups)}")
            for p in tensors:
                if isinstance(p, Tensor):  # torch tells of the others
                    check_parameter(p)
            self.check_group({**self.defaults, **param_group})
            param_group["params"] = params
        super().add_param_group(param_group)
        added = self.param_groups[-1]["params"]
        keep_main_gradients(added)
        self._slots = None
        if not self.__dict__.get("_spare_halves"):  # __init__ of the base adds the first groups
            return
        self.use_split({p: self._spare_halves.pop(p) for p in added if p in self._spare_halves})

    def use_split(self, lower_halves: Mapping[Tensor, Tensor]) -> None:
        """Makes these bf16 parameters the upper halves of fp32 weights, and these int16 tensors the lower ones."""
        for p, lo in lower_halves.items():
            if p.dtype is not torch.bfloat16 or lo.dtype is not torch.int16 or lo.shape != p.shape:
                raise ValueError(
                    f"expected a bf16 parameter and an int16 tensor of its shape, got {p.dtype} of shape"
                    f" {tuple(p.shape)} and {lo.dtype} of shape {tuple(lo.shape)}"
                )
            if not any(p is other for group in self.param_groups for other in group["params"]):
                raise ValueError(f"expected parameters of this optimizer, got another of shape {tuple(p.shape)}")
            self.state[p]["weight_lo"] = lo
        keep_main_gradients(lower_halves)
        self._slots = None

    def keep_for_later(self, lower_halves: Mapping[Tensor, Tensor]) -> None:
        """Lower halves of parameters that are in no group yet. add_param_group takes them then: layers thaw late."""
        self._spare_halves = dict(lower_halves)

    def drop_split(self) -> None:
        """Forgets the lower halves: the parameters are whole fp32 weights again, or stay bf16 without them."""
        self._spare_halves = {}
        for p in _all(self.param_groups):
            if p in self.state:
                self.state[p].pop("weight_lo", None)
        drop_main_gradients(p for p in _all(self.param_groups) if p.dtype is not torch.bfloat16)
        self._slots = None

    # ---- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the seed and the counters under "fullstride"."""
        packed = super().state_dict()
        for key, state in packed["state"].items():
            if isinstance(state, dict) and isinstance(state.get("step"), Tensor):
                packed["state"][key] = {**state, "step": state["step"].clone()}  # not a view of all steps
        return {**packed, OWN_KEY: self._own_state()}

    def _own_state(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "skipped_steps": self.skipped_steps,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "lookahead": None if self.lookahead is None else dict(self.lookahead),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state of this class, or of torch.optim's class of the same name.

        Unlike torch's it casts nothing to the dtype of the parameters, copies the tensors and changes param_groups and
        lower halves in place: whoever holds them (a scheduler, a module) sees what was loaded.
        """
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        saved = deepcopy(state_dict["param_groups"])
        sizes, saved_sizes = ([len(group["params"]) for group in groups] for groups in (self.param_groups, saved))
        if sizes != saved_sizes:
            raise ValueError(f"expected the state of groups with {sizes} parameters, got {saved_sizes}; pass its own")
        state: defaultdict[Any, Any] = defaultdict(dict)
        params = dict(zip(_all(saved), _all(self.param_groups), strict=True))
        for key, value in state_dict["state"].items():
            state[params.get(key, key)] = _copied(value)
        for p in _all(self.param_groups):
            self._keep_lower_half(p, state)
        for group, new in zip(self.param_groups, saved, strict=True):
            kept: dict[str, Any] = {key: group[key] for key in ("params", "param_names") if key in group}
            group.clear()
            group.update({**kept, **{key: value for key, value in new.items() if key != "params"}})
        self.__setstate__({"state": state, "param_groups": self.param_groups})
        self._load_own_state(state_dict.get(OWN_KEY) or {})
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def _keep_lower_half(self, p: Tensor, loaded: Any) -> None:
        """The tensor with the lower half of p is also its module's: it takes the loaded values and stays."""
        lo = self.state[p].get("weight_lo") if p in self.state else None
        if lo is not None and lo.shape == p.shape:
            saved = loaded[p].get("weight_lo")
            if saved is not None:
                lo.copy_(saved)
            loaded[p]["weight_lo"] = lo

    def _load_own_state(self, own: dict[str, Any]) -> None:
        self.seed = own.get("seed", self.seed)
        self.skipped_steps = own.get("skipped_steps", 0)
        if self.scaler is not None and own.get("scaler"):
            self.scaler.load_state_dict(own["scaler"])
        if self.lookahead is not None and own.get("lookahead"):
            self.lookahead.update(own["lookahead"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in (*_OWN, "_spare_halves")}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            keep_main_gradients(group["params"])  # a copy of a parameter has no hooks
        self._slots = None
        self._unscaled = False

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}state_precision={self.state_precision!r}, clip={self.clip}, seed={self.seed})"


def check_options(state_precision: str, clip: float | None) -> None:
    if state_precision not in STATE_DTYPES:
        raise ValueError(f'expected state_precision "fp32", "bf16" or "8bit", got {state_precision!r}')
    if clip is not None and not clip > 0:
        raise ValueError(f"expected clip above 0, or None for no clipping, got {clip}")


def check_at_least_zero(group: dict[str, Any], *names: str) -> None:
    for name in names:
        if not group[name] >= 0:
            raise ValueError(f"expected {name} of at least 0, got {group[name]}")


def check_betas(group: dict[str, Any]) -> None:
    betas = group["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"expected two betas from 0 to below 1, got {betas}")


def _all(groups: list[dict[str, Any]]) -> Iterable[Any]:
    return chain.from_iterable(group["params"] for group in groups)


def _copied(value: Any) -> Any:
    """Tensors of a state, on the CPU, in the dtype they have."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else deepcopy(value)

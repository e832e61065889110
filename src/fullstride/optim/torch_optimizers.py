"""torch's AdamW, Adam and SGD into ours and back, with all their state.

    optimizer = from_torch(optimizer)    # torch.optim.AdamW -> fullstride.optim.AdamW
    optimizer = to_torch(optimizer)      # and back

The same object comes back: its class changes, as that of modules does in prepare(). A scheduler, a gradient scaler or a
trainer that was given the optimizer before thus goes on with the fast one, and nobody is left with a stale copy.
"""

import weakref
from typing import Any

import torch
from torch import Tensor

from ._base import Optimizer, check_options
from ._slots import check_parameter, load_state
from .adamw import Adam, AdamW
from .lookahead import Lookahead
from .main_gradients import keep_main_gradients
from .sgd import SGD

_OURS: dict[type, type[Optimizer]] = {torch.optim.AdamW: AdamW, torch.optim.Adam: Adam, torch.optim.SGD: SGD}
_TORCHS: dict[type, type[torch.optim.Optimizer]] = {ours: torchs for torchs, ours in _OURS.items()}
_MOMENTS = {"exp_avg": False, "exp_avg_sq": True, "max_exp_avg_sq": True, "momentum_buffer": False}
"""States, and whether 8 bits keep their root."""
_ONLY_TORCHS = {"foreach": None, "capturable": False, "differentiable": False, "fused": None}
"""Options that ours do not look at. They stay in the groups, for the way back."""
_AMP_FLAG = "_step_supports_amp_scaling"
"""On a fused optimizer: torch's GradScaler then leaves the division to its step. Ours wants it done before."""


def from_torch(
    optimizer: torch.optim.Optimizer,
    *,
    state_precision: str | None = None,
    clip: float | None = None,
    skip_nonfinite: bool | None = None,
    seed: int = 0,
) -> Any:
    """The same optimizer object, now one of ours. Groups, hyperparameters, state, hooks and schedulers go on.

    One that is ours already comes back as it is, with `clip` and
    `skip_nonfinite` if they are given. Lookahead is converted inside.
    """
    options: Any = {"state_precision": state_precision, "clip": clip, "skip_nonfinite": skip_nonfinite, "seed": seed}
    if isinstance(optimizer, Lookahead):
        optimizer.convert(lambda inner: from_torch(inner, **options))
        return optimizer
    check(optimizer, state_precision, clip)
    if isinstance(optimizer, Optimizer):
        optimizer.clip = optimizer.clip if clip is None else clip
        optimizer.skip_nonfinite = optimizer.skip_nonfinite if skip_nonfinite is None else skip_nonfinite
        return optimizer
    scheduled = _take_off_schedulers(optimizer)
    optimizer.__class__ = _OURS[type(optimizer)]
    assert isinstance(optimizer, Optimizer)
    optimizer.set_options(state_precision or "fp32", clip, skip_nonfinite, seed)
    vars(optimizer).pop(_AMP_FLAG, None)
    optimizer._patch_step_function()
    for group in optimizer.param_groups:
        keep_main_gradients(group["params"])
    if scheduled:
        _tell_schedulers(optimizer)
    return optimizer


def check(optimizer: torch.optim.Optimizer, state_precision: str | None = None, clip: float | None = None) -> None:
    """Raises what from_torch() would raise, and changes nothing."""
    if isinstance(optimizer, Lookahead):
        check(optimizer.optimizer, state_precision, clip)
        return
    if isinstance(optimizer, Optimizer):
        if state_precision not in (None, optimizer.state_precision):
            raise ValueError(
                f"expected an optimizer with states in {state_precision}, got ours with {optimizer.state_precision};"
                f" make it with state_precision={state_precision!r}"
            )
        return
    if type(optimizer) not in _OURS:
        name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise TypeError(
            f"expected torch.optim's AdamW, Adam or SGD, got {name},"
            " which has no fast form; make one of fullstride.optim"
        )
    check_options(state_precision or "fp32", clip)
    _check_groups(optimizer)


def to_torch(optimizer: Any) -> Any:
    """The same optimizer object, now of torch's class of that name, with states in the dtype of the parameters."""
    kind = _TORCHS.get(type(optimizer))
    if kind is None:
        raise TypeError(f"expected our AdamW, Adam or SGD, which torch has too, got {type(optimizer).__qualname__}")
    _check_convertible(optimizer)
    for p, state in optimizer.state.items():
        _state_to_torch(p, state)
    scheduled = _take_off_schedulers(optimizer)
    for name in list(vars(optimizer)):
        if name in Optimizer.__annotations__ or name in ("_slots", "_unscaled", "_spare_halves"):
            delattr(optimizer, name)
    optimizer.__class__ = kind
    known = {name: value for name, value in _ONLY_TORCHS.items() if (kind, name) != (torch.optim.SGD, "capturable")}
    for options in (optimizer.defaults, *optimizer.param_groups):
        options.update(known | options)
    if any(group["fused"] for group in optimizer.param_groups):
        setattr(optimizer, _AMP_FLAG, True)
    optimizer._patch_step_function()
    if scheduled:
        _tell_schedulers(optimizer)
    return optimizer


def _check_convertible(optimizer: Any) -> None:
    split = sum("weight_lo" in state for state in optimizer.state.values())
    if split:
        raise ValueError(f"expected whole weights, got {split} split ones, which torch cannot step; restore() first")
    if optimizer.lookahead is not None:
        raise ValueError("expected an optimizer without Lookahead, which torch has not; convert before it is wrapped")


def _state_to_torch(p: Tensor, state: dict[str, Any]) -> None:
    for key, root in _MOMENTS.items():
        if isinstance(state.get(key), Tensor):
            state[key] = load_state(state, key, root).to(p.dtype)
            state.pop(f"{key}_scale", None)
    if state.get("step") == 0:
        state.pop("momentum_buffer", None)  # torch takes one that is there for the mean of earlier gradients
    if "step" in state:
        state["step"] = torch.tensor(float(state["step"]), dtype=torch.float32, device="cpu")


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    for i, group in enumerate(optimizer.param_groups):
        if not group["params"]:
            raise ValueError(f"expected parameters in every group, got none in group {i}; leave it out")
        if group.get("differentiable"):
            raise ValueError("expected an optimizer without differentiable=True, which needs torch's own; use that one")
        for p in group["params"]:
            check_parameter(p)
    if "step" in vars(optimizer) and not hasattr(vars(optimizer)["step"], "_wrapped_by_lr_sched"):
        raise ValueError("expected the step of its class, got one that was replaced on the object; convert it before")


def _take_off_schedulers(optimizer: torch.optim.Optimizer) -> bool:
    """A scheduler puts a wrapper around `step` on the object, and that would go on calling the old class."""
    return vars(optimizer).pop("step", None) is not None


def _tell_schedulers(optimizer: torch.optim.Optimizer) -> None:
    """As the scheduler's own wrapper does: it wants to know that steps were taken, and warns otherwise."""
    reference = weakref.ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        target: Any = reference()
        target._opt_called = True
        return type(target).step(target, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]

"""The exact fp32 weights of a split model, for those who read or write its parameters() themselves.

    with fullstride.whole_weights(model):
        ema.update(model)                     # parameters() are fp32 here, and may be changed

parameters() of a model prepared in bf16 are the upper halves: an average over them is one of rounded weights. Two who
read them are known and get whole ones by themselves: torch's AveragedModel and `save_pretrained` of Hugging Face, which
also writes the dtype into its config.json.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ..ops.convert import merge, split
from .split_weights import halves, lower_half


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """While it lasts the parameters are fp32; what is written into them stays. Any model can be given.

    Takes 4 bytes a parameter more meanwhile. Not for steps of the optimizer, which needs the halves. What ends the
    split meanwhile, restore() or a new dtype, ends it for good.
    """
    places = [(module, *half) for module in model.modules() for half in halves(module)]
    kept = {parameter: (parameter.data, lo) for _, _, parameter, lo in places}
    for parameter, (hi, lo) in kept.items():
        parameter.data = merge(hi, lo)
    try:
        yield
    finally:
        ended = {parameter for module, name, parameter, lo in places if lower_half(module, name) is not lo}
        for parameter, (hi, lo) in kept.items():
            if parameter in ended:
                lo.resize_(0)  # the optimizer sees that it is no half of anything now
            elif parameter.dtype is torch.float32 and parameter.shape == hi.shape:  # or the user made it another
                new_hi, new_lo = split(parameter.data)
                lo.copy_(new_lo)
                parameter.data = hi.copy_(new_hi)  # where the optimizer knows it


class WithWholeWeights:
    """A method of a module, called while its weights are whole. An object of a class at module level: it is copied."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with whole_weights(self.module):
            return getattr(type(self.module), self.name)(self.module, *args, **kwargs)


_METHODS = ("save_pretrained",)


def wrap_savers(model: nn.Module) -> None:
    """The methods that look at the dtype of parameters when they save them."""
    for module in model.modules():
        for name in _METHODS:
            if callable(getattr(type(module), name, None)) and name not in module.__dict__:
                module.__dict__[name] = WithWholeWeights(module, name)


def unwrap_savers(model: nn.Module) -> None:
    for module in model.modules():
        for name in _METHODS:
            if isinstance(module.__dict__.get(name), WithWholeWeights):
                del module.__dict__[name]


def follow_averages() -> Callable[[], None]:
    """Lets AveragedModel, in whatever trainer it is, read whole weights. Returns the way back."""
    original = AveragedModel.update_parameters

    @wraps(original)
    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        with whole_weights(model):
            original(self, model)

    def put_back() -> None:
        if AveragedModel.update_parameters is update_parameters:  # and not somebody's who came later
            AveragedModel.update_parameters = original  # type: ignore[method-assign]

    AveragedModel.update_parameters = update_parameters  # type: ignore[method-assign]
    return put_back

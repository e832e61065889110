"""What stands in a module's __dict__ before one of its methods."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

PLAIN_VALUES = (bool, int, float, str, type(None))
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"forward"}


class StandIn:
    """Knows the method that it stands before. Copies and pickles as its module."""

    module: nn.Module
    name = "forward"

    @property
    def original(self) -> Callable[..., Any]:
        """Not bound: where torch.compile breaks its graph it makes `module.forward` of a bound method: that is self."""
        return getattr(type(self.module), self.name)

    @property
    def __signature__(self) -> inspect.Signature:
        """Some trainers look at the names of a model's arguments."""
        return inspect.signature(self.original.__get__(self.module))


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """What its class or its user gave it, beside tensors and other modules."""
    return {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}

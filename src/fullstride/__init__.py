"""Fullstride: one call that makes PyTorch training on CPUs faster at the same quality.

    model, optimizer = fullstride.prepare(model, optimizer)
"""

from typing import TYPE_CHECKING, Any

from .machine import memory as _memory

__version__ = "0.1.0"
__all__ = ["explain", "optim", "prepare", "release_memory", "restore"]

if TYPE_CHECKING:
    from . import optim
    from .machine.memory import release as release_memory
    from .preparation import explain, prepare, restore


def __getattr__(name: str) -> Any:
    """The public names, loaded when they are asked for: `fullstride --help` must not wait for torch."""
    from importlib import import_module

    places = {
        "explain": (".preparation", "explain"),
        "optim": (".optim", None),
        "prepare": (".preparation", "prepare"),
        "release_memory": (".machine.memory", "release"),
        "restore": (".preparation", "restore"),
    }
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = places[name]
    module = import_module(module_name, __name__)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


_memory.keep_heap()  # for every tensor from here on; FULLSTRIDE_HEAP=0 forbids it

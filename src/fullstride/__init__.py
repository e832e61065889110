"""Fullstride: one call that makes PyTorch training on CPUs faster at the same quality.

    model, optimizer = fullstride.prepare(model, optimizer)          # the rest of the script stays as it is
    fullstride.fit(model, loader, loss, epochs=10)                   # the loop, too: progress, checkpoints, a report
    fullstride.Trainer(fullstride.recipes.mlp()).fit()               # or no script at all: `fullstride train mlp`
"""

from typing import TYPE_CHECKING, Any

from .machine import memory as _memory
from .machine import onednn as _onednn

__version__ = "0.1.0"
__all__ = [
    "Hook", "SyntheticDataset", "Trainer", "advise", "contrastive", "explain", "fit", "flops", "optim", "prepare",
    "recipes", "release_memory", "restore", "whole_weights",
]  # fmt: skip

if TYPE_CHECKING:
    from . import optim, recipes
    from .contrasting import contrastive
    from .counting import flops
    from .data.synthetic import SyntheticDataset
    from .machine.memory import release as release_memory
    from .preparation import explain, prepare, restore
    from .rewriting.whole_weights import whole_weights
    from .studies.advise.any_model import advise
    from .train.fit import fit
    from .train.hooks import Hook
    from .train.trainer import Trainer


def __getattr__(name: str) -> Any:
    """The public names, loaded when they are asked for: `fullstride --help` must not wait for torch."""
    from importlib import import_module

    places = {
        "Hook": (".train.hooks", "Hook"),
        "SyntheticDataset": (".data.synthetic", "SyntheticDataset"),
        "Trainer": (".train.trainer", "Trainer"),
        "advise": (".studies.advise.any_model", "advise"),
        "contrastive": (".contrasting", "contrastive"),
        "explain": (".preparation", "explain"),
        "fit": (".train.fit", "fit"),
        "flops": (".counting", "flops"),
        "optim": (".optim", None),
        "prepare": (".preparation", "prepare"),
        "recipes": (".recipes", None),
        "release_memory": (".machine.memory", "release"),
        "restore": (".preparation", "restore"),
        "whole_weights": (".rewriting.whole_weights", "whole_weights"),
    }
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = places[name]
    module = import_module(module_name, __name__)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # what Tab shows, loaded or not


_memory.keep_heap()  # for every tensor from here on; FULLSTRIDE_HEAP=0 forbids it
_onednn.cap()  # before oneDNN's first use; only on CPUs where torch's bf16 would die

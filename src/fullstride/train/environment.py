"""What the bits of a training run depend on, besides its config."""

import platform
from typing import Any

import torch
from torch import nn

from .. import __version__, _native
from ..machine import cpu
from ..ops import products
from ..preparation import explain
from ..recipes.task import Task


def describe(task: Task, model: nn.Module) -> dict[str, Any]:
    """As things stand after prepare(). Other data is told by its size: the folder may hold the full set by now; and by
    its content, where the task knows that."""
    content = {} if task.fingerprint is None else {"data": task.fingerprint[:16]}
    return {
        "fullstride": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu.describe().model,
        "kernels": _native.isa() if _native.available() else "torch references",
        "threads": torch.get_num_threads(),
        "precision": explain(model).precision,
        "activations": explain(model).activations,
        "products": {name: _backends(getattr(torch, name)) for name in ("float32", "bfloat16")},
        **({} if task.share.world == 1 else {"processes": task.share.world}),
        "train_samples": task.num_train,
        "valid_samples": task.num_valid,
        **content,
    }


def use_products(wanted: dict[str, str | dict[str, str]]) -> None:
    """Multiplies by the libraries that the run began with: which is the fastest is measured, and may come out
    otherwise the next time. One that is not there any more shows in differences()."""
    for name, recorded in wanted.items():
        dtype = getattr(torch, name)
        by_shape = dict.fromkeys(products.SHAPES, recorded) if isinstance(recorded, str) else recorded
        for shape, backend in by_shape.items():
            if shape in products.SHAPES and backend in products.backends(dtype):
                products.set_backend(dtype, backend, shape)


def _backends(dtype: torch.dtype) -> str | dict[str, str]:
    """By shape; one name if it is the same for all, as runs recorded it that knew no shapes."""
    by_shape = {shape: products.backend(dtype, shape) for shape in products.SHAPES}
    names = set(by_shape.values())
    return names.pop() if len(names) == 1 else by_shape


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What keeps a resumed run from repeating the bits of the run it goes on from. Python's version does not."""
    before, now = ({"processes": 1, **facts} for facts in (before, now))
    names = [name for name in before if name != "python" and before[name] != now.get(name)]
    return [f"{name} was {before[name]} and is {now.get(name)}" for name in names]

"""Where, when and on what a measurement was taken: without it a figure cannot be compared with another."""

import os
import platform
import time
from typing import Any

import torch

from .. import _native, _source
from ..machine import cpu, memory


def conditions(heap: memory.Heap | None = None) -> dict[str, Any]:
    """The facts. `heap`: what keep_heap() did, if it was called."""
    machine = cpu.describe()
    return {
        "cpu": machine.model,
        "usable_cores": machine.num_usable,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),  # of the last minute: well above 0, others were measured too
        "isa": _native.isa(),
        "best_isa": _native.best_isa(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "heap": "as it comes" if heap is None else ("kept: " if heap.kept else "not kept: ") + heap.note,
        "commit": _source.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def as_text(conditions: dict[str, Any]) -> str:
    """The facts as aligned lines."""
    return "\n".join(f"{name.replace('_', ' '):<13} {value}" for name, value in conditions.items())

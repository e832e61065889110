"""A checkpoint sent from the first process to all: only one host needs the run folder. Numbers and JSON, no pickles."""

import torch
from torch import Tensor

from ...distributed.world import World
from .directory import Snapshot


def from_first(world: World, snapshot: Snapshot | None) -> Snapshot | None:
    plan = world.from_first(None if snapshot is None else _plan(snapshot))
    if plan is None:
        return None
    if snapshot is None:
        groups = plan["tensors"].items()
        tensors = {group: {name: _empty(*kind) for name, kind in kinds.items()} for group, kinds in groups}
        snapshot = Snapshot(plan["step"], tensors, plan["documents"])
    for group, kinds in plan["tensors"].items():
        world.tensors_from_first(snapshot.tensors[group][name] for name in kinds)
    return snapshot


def _plan(snapshot: Snapshot) -> dict[str, object]:
    kinds = {
        group: {name: (list(x.shape), str(x.dtype).removeprefix("torch.")) for name, x in tensors.items()}
        for group, tensors in snapshot.tensors.items()
    }
    return {"step": snapshot.step, "documents": snapshot.documents, "tensors": kinds}


def _empty(shape: list[int], dtype: str) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype))

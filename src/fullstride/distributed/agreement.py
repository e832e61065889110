"""What all processes of a run must have in common, looked at before the first step.

Versions, sources, torch, the config and the data must be the same: else a run would train two models. CPUs may differ,
which is said, since the slowest decides; but then all must compute in one precision.
"""

import hashlib
import logging
import platform
from typing import Any

import torch

from .. import __version__, _native, _source
from ..machine import cpu
from .world import World

logger = logging.getLogger(__name__)

_RESUMES = {True: "goes on with a run", False: "begins a run"}
_MUST = {
    # First: one that goes on has more to ask, and says this alone before
    "resumes": "give every host the same command; a run folder is needed on the first one alone",
    "fullstride": "install the same version everywhere",
    "source": "check out the same commit everywhere",
    "torch": "install the same version everywhere",
    "config": "start every host with the same command",
    "data": "give every host the same files",
}
_MAY = ("cpu", "instructions", "python")
_ROUND = {"cpu", "instructions"}


def facts(config: str, resumes: bool) -> dict[str, str]:
    """Of this process, before it has read its data."""
    return {
        "fullstride": __version__,
        "source": _source.commit() or "unknown",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu.describe().model,
        "instructions": _native.best_isa(),
        "config": hashlib.sha256(config.encode()).hexdigest()[:12],
        "resumes": _RESUMES[resumes],
    }


def check_command(world: World, resumes: bool) -> None:
    """That all begin a run, or all go on with one. Others may be in check() with all their facts meanwhile."""
    check(world, {"resumes": _RESUMES[resumes]})


def check(world: World, own: dict[str, Any]) -> bool:
    """ValueError in all processes if one differs in what must be the same, with the same words; what may differ is said
    by the first. Whether they may round otherwise."""
    if world.is_alone:
        return False
    everyone = world.gather(own)
    for name, advice in _MUST.items():
        _check_one(world, name, advice, [one.get(name) for one in everyone])
    differ = set()
    for name in _MAY:
        found = [str(one[name]) for one in everyone if name in one]
        if len(set(found)) > 1:
            differ.add(name)
            kinds = ", ".join(f"{kind} ({found.count(kind)} processes)" for kind in dict.fromkeys(found))
            if world.is_first:
                logger.warning("processes differ in %s: %s; the slowest sets the pace", name, kinds)
    return not differ.isdisjoint(_ROUND)


def _check_one(world: World, name: str, advice: str, values: list[Any]) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            raise ValueError(
                f"expected the same {name} in all processes, got {values[0]} in {world.name(0)} and {value} in"
                f" {world.name(rank)}; {advice}"
            )


def precision(world: World, own: str) -> str:
    """What all train in where the machine was to choose: fp32 if one of them is not faster in another."""
    found = world.gather(own)
    if len(set(found)) == 1:
        return own
    if world.is_first:
        slow = ", ".join(world.name(rank) for rank, value in enumerate(found) if value != "bf16")
        logger.warning("precision: fp32 for all, as bf16 is not faster everywhere: not in %s", slow)
    return "fp32"

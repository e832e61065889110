"""How many processes can be tried: powers of two up to the cores, and as many as there are NUMA nodes or sockets.

Each process has a share of the cores to itself, and as many threads (machine/placement.py). Data workers are started by
each process, so those of the best so far are divided among them: all together as many as were best, at least one each.

A number is left out where another training would be the outcome (islands), or none: data/sharing.py refuses it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import Ground, Settings


def others(best: "Settings", ground: "Ground", powers: Sequence[int]) -> tuple[list["Settings"], dict[str, str]]:
    """As in settings.py; powers: of two, up to the cores. Nodes and sockets come first, then few before many: each
    process more sends all gradients once more."""
    if ground.cores < 2:
        return [], {"several processes": "each needs a core, and one is here"}
    if ground.processes_matter:
        return [], {"several processes": f"another training: {ground.processes_matter}"}
    taken, left_out = [], {}
    for count in counts(ground, powers):
        why = refusal(count, best.micro_batch, best.accumulate, ground.can_cut)
        if why:
            left_out[named(count)] = why
        elif count != best.processes:
            workers = -(-best.workers // count) if isinstance(best.workers, int) else best.workers
            taken.append(best._replace(processes=count, threads=None, workers=workers))
    return taken, left_out


def counts(ground: "Ground", powers: Sequence[int]) -> list[int]:
    near = {count for count in ground.regions if count <= ground.cores}
    return sorted({*powers, *near} - {0, 1}, key=lambda count: (count not in near, count))


def refusal(count: int, micro_batch: int, accumulate: int, can_cut: bool) -> str:
    """Why so many processes cannot share a step of these micro-batches alike, or nothing."""
    from ...data.sharing import Share  # loads torch

    share = Share(count, 0, accumulate)
    if share.parts > 1 and not can_cut:
        return f"batches of a loader are not cut, and {accumulate} of them a step cannot be dealt out evenly"
    try:
        share.check(micro_batch)
    except ValueError:
        return f"{accumulate} x {micro_batch} samples a step cannot be shared alike"
    return ""


def named(count: int) -> str:
    return f"{count} processes" if count > 1 else "1 process"


def option(count: int) -> str:
    """Of `fullstride train`, behind its other words."""
    return f" --nproc {count}" if count > 1 else ""

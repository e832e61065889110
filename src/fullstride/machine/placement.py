"""Which cores each of several training processes (ranks) on one machine runs on.

Ranks that wander over the same cores take them and their caches from each other, and read memory of other NUMA nodes.
So each is pinned to cores of its own, neighbours, if possible all of one node. Memory follows by itself: Linux puts a
page on the node of the CPU that touches it first, so a rank that is pinned before it allocates needs no memory policy.

Ranks do not talk about this. Those of torchrun inherit the affinity of its agent, so all of them compute the same
shares, and each takes its own.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from . import cgroup, cpu

T = TypeVar("T")

VARIABLE = "FULLSTRIDE_PIN"  # 0: never, 1: even where a launcher has bound the ranks
_OPEN_MPI_POLICY = "OMPI_MCA_hwloc_base_binding_policy"  # of version 4, by a user or by mpirun --bind-to

# What pin() set -> what there was: a second call must not divide the share once more.
_before: dict[frozenset[int], frozenset[int]] = {}


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    cpus: tuple[int, ...]  # logical ones, all hyper-threads of its cores that the affinity reaches
    cores: int  # physical ones among them, fewer if the quota is smaller: its threads
    node: int | None  # the NUMA node of all of them, None if they lie on several or the system does not tell


_place_of_process: Place | None = None


class _Core(NamedTuple):
    node: int | None
    cpus: tuple[int, ...]


def pin(local_rank: int, num: int) -> Place | None:
    """Pins the calling process to its share of `num`, before it starts threads: these inherit it, earlier ones do not.

    None, and nothing is changed, where the system cannot (macOS), for a rank that is alone, and where a launcher has
    bound each rank already. FULLSTRIDE_PIN=0 switches pinning off, FULLSTRIDE_PIN=1 pins in the last two cases, too.
    """
    _check_num(num)
    if not 0 <= local_rank < num:
        raise ValueError(f"local_rank: expected a number from 0 to {num - 1} for {num} ranks; got {local_rank}")
    wish = os.environ.get(VARIABLE)
    if wish == "0" or not hasattr(os, "sched_setaffinity"):
        return None
    affinity = frozenset(os.sched_getaffinity(0))
    affinity = _before.get(affinity, affinity)
    if wish != "1" and (num == 1 or _bound_by_launcher(affinity)):
        return None
    place = shares(num, affinity=affinity)[local_rank]
    try:
        os.sched_setaffinity(0, place.cpus)
    except OSError:  # a sandbox forbids it
        return None
    global _place_of_process
    _before[frozenset(place.cpus)] = affinity
    _place_of_process = place
    return place


def pinned() -> Place | None:
    """What pin() gave this process, if it has it still."""
    place = _place_of_process
    is_so = place is not None and os.sched_getaffinity(0) == set(place.cpus) != _before.get(frozenset(place.cpus))
    return place if is_so else None


def shares(num: int, root: str | Path = "/", affinity: Collection[int] | None = None) -> list[Place]:
    """The places of `num` ranks: of the cores that `affinity` reaches, this process's unless one is given.

    A quota of the control groups that is smaller than the cores is divided evenly, into whole threads, at least one.
    """
    _check_num(num)
    root = Path(root)
    nodes = _cores_by_node(root, frozenset(cpu.allowed_cpus(root) if affinity is None else affinity))
    quota, num_cores = cgroup.cpu_quota(root), sum(map(len, nodes))
    most = num_cores if quota is None or quota >= num_cores else max(1, int(quota / num))
    return [_place(cores, most) for cores in _deal(nodes, num)]


def regions(root: str | Path = "/", affinity: Collection[int] | None = None) -> tuple[int, int]:
    """(NUMA nodes, sockets) that `affinity` reaches: as many ranks have one each. 0 nodes if the system tells none."""
    root = Path(root)
    reached = frozenset(cpu.allowed_cpus(root) if affinity is None else affinity)
    num_nodes = sum(not reached.isdisjoint(node.cpus) for node in cpu.numa_nodes(root))
    return num_nodes, len({cpu.core_number(root, number)[0] for number in reached})


def _check_num(num: int) -> None:
    if num < 1:
        raise ValueError(f"num: expected at least one rank; got {num}")


def _cores_by_node(root: Path, affinity: frozenset[int]) -> list[list[_Core]]:
    """The allowed logical CPUs of each core, by node, package and core; nodes that have none are left out."""
    node_of = {number: node.number for node in cpu.numa_nodes(root) for number in node.cpus}
    cores = [tuple(sorted(affinity.intersection(siblings))) for siblings in cpu.physical_cores(root, affinity)]
    nodes: dict[int | None, list[_Core]] = defaultdict(list)
    for cpus in sorted(cores, key=lambda cpus: (node_of.get(cpus[0], -1), cpu.core_number(root, cpus[0]), cpus)):
        node = node_of.get(cpus[0])
        nodes[node].append(_Core(node, cpus))
    return list(nodes.values())


def _deal(nodes: list[list[_Core]], num: int) -> list[list[_Core]]:
    """Whole nodes, or equal parts of a node, to each rank if their numbers allow it, else blocks over all cores.

    An affinity may leave one node far fewer cores than another, and ranks wait for the slowest of them: a rank that
    would get half as many as evenly, or fewer, straddles nodes instead. The memory of another is rarely twice as slow.
    """
    cores = list(chain.from_iterable(nodes))
    if num > len(cores):
        return [[cores[rank % len(cores)]] for rank in range(num)]
    even = _blocks(cores, num)
    if num < len(nodes):
        local = [list(chain.from_iterable(group)) for group in _blocks(nodes, num)]
    elif num % len(nodes) == 0:
        local = [block for node in nodes for block in _blocks(node, num // len(nodes))]
    else:
        return even
    return local if 2 * min(map(len, local)) > min(map(len, even)) else even


def _blocks(items: Sequence[T], num: int) -> list[list[T]]:
    """Contiguous, as even as possible, the longer ones first."""
    size, longer = divmod(len(items), num)
    bounds = [i * size + min(i, longer) for i in range(num + 1)]
    return [list(items[first:end]) for first, end in pairwise(bounds)]


def _place(cores: list[_Core], most: int) -> Place:
    nodes = {core.node for core in cores}
    cpus = tuple(sorted(chain.from_iterable(core.cpus for core in cores)))
    return Place(cpus, min(len(cores), most), nodes.pop() if len(nodes) == 1 else None)


def _bound_by_launcher(affinity: frozenset[int]) -> bool:
    """Whether a launcher gave each rank CPUs of its own. No rank sees those of another, but the launcher leaves traces.

    What Slurm or mpirun bound under torchrun was its agent, and the ranks share that. Open MPI binds unless it is told
    not to, and from version 5 on no longer says so: it is taken to have bound what does not reach all CPUs.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ or affinity.issuperset(cpu.online_cpus(Path("/"))):
        return False
    slurm = os.environ.get("SLURM_CPU_BIND_TYPE", "none")  # "mask_cpu:", "cores", ...
    open_mpi = os.environ.get(_OPEN_MPI_POLICY, "core")
    return slurm not in ("", "none") or ("OMPI_COMM_WORLD_LOCAL_RANK" in os.environ and open_mpi != "none")

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fullstride.machine import cpu, placement
from fullstride.machine.placement import Place

from .machines import V2_MOUNT, cores, write

TWO_SOCKETS = [f"{core},{core + 8}" for core in range(8)] * 2  # 2 x 4 cores x 2 threads, siblings 8 apart
LAUNCHERS = (
    "FULLSTRIDE_PIN", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_hwloc_base_binding_policy", "SLURM_CPU_BIND_TYPE",
    "TORCHELASTIC_RUN_ID",
)  # fmt: skip

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")


def nodes(*cpus):
    return {f"sys/devices/system/node/node{i}/cpulist": f"{text}\n" for i, text in enumerate(cpus)}


def numbers(packages, core_ids):
    """Package and core of CPUs 0, 1, ..."""
    folder, files = "sys/devices/system/cpu", {}
    for i, (package, core) in enumerate(zip(packages, core_ids, strict=True)):
        files[f"{folder}/cpu{i}/topology/physical_package_id"] = f"{package}\n"
        files[f"{folder}/cpu{i}/topology/core_id"] = f"{core}\n"
    return files


def quota(cpus):
    group = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": f"{V2_MOUNT}\n"}
    return group | {"sys/fs/cgroup/cpu.max": f"{int(cpus * 100000)} 100000\n"}


def both(first, last):
    """Hyper-threads of these cores of TWO_SOCKETS."""
    return (*range(first, last + 1), *range(first + 8, last + 9))


@pytest.fixture
def two_sockets(tmp_path):
    numbered = numbers([0, 0, 0, 0, 1, 1, 1, 1] * 2, [0, 1, 2, 3] * 4)
    return write(tmp_path, cores(TWO_SOCKETS) | nodes("0-3,8-11", "4-7,12-15") | numbered)


@pytest.fixture
def plain_cores(tmp_path):
    """plain_cores("0-1", "2-3") is a machine without hyper-threads, with these nodes."""

    def make(*node_cpus, **files):
        num_cpus = 1 + max(number for text in node_cpus for number in cpu.cpu_list(text))
        return write(tmp_path, cores([str(i) for i in range(num_cpus)]) | nodes(*node_cpus) | files)

    return make


def test_two_ranks_on_two_cores_get_one_each(plain_cores):
    assert placement.shares(2, plain_cores("0-1"), range(2)) == [Place((0,), 1, 0), Place((1,), 1, 0)]


def test_one_rank_gets_the_whole_machine(two_sockets):
    assert placement.shares(1, two_sockets, range(16)) == [Place(tuple(range(16)), 8, None)]


def test_as_many_ranks_as_nodes_get_one_each(two_sockets):
    assert placement.shares(2, two_sockets, range(16)) == [Place(both(0, 3), 4, 0), Place(both(4, 7), 4, 1)]


def test_ranks_that_do_not_fit_the_nodes_get_even_blocks(two_sockets):
    assert placement.shares(3, two_sockets, range(16)) == [
        Place(both(0, 2), 3, 0), Place(both(3, 5), 3, None), Place(both(6, 7), 2, 1),
    ]  # fmt: skip


def test_a_multiple_of_the_nodes_divides_each_node(two_sockets):
    assert placement.shares(4, two_sockets, range(16)) == [
        Place(both(0, 1), 2, 0), Place(both(2, 3), 2, 0), Place(both(4, 5), 2, 1), Place(both(6, 7), 2, 1),
    ]  # fmt: skip


def test_as_many_ranks_as_cores_get_one_each_with_its_threads(two_sockets):
    found = placement.shares(8, two_sockets, range(16))
    assert found == [Place((core, core + 8), 1, core // 4) for core in range(8)]


def test_more_ranks_than_cores_take_them_in_turns(two_sockets):
    found = placement.shares(16, two_sockets, range(16))
    assert found == [Place((core, core + 8), 1, core // 4) for core in range(8)] * 2
    assert placement.shares(9, two_sockets, range(16))[8] == found[0]


def test_nodes_of_an_odd_number_of_cores_are_not_straddled(plain_cores):
    found = placement.shares(4, plain_cores("0-4", "5-9"), range(10))
    assert [(place.cpus, place.node) for place in found] == [((0, 1, 2), 0), ((3, 4), 0), ((5, 6, 7), 1), ((8, 9), 1)]


def test_fewer_ranks_than_nodes_get_whole_nodes(plain_cores):
    root = plain_cores("0-1", "2-3", "4-5", "6-7")
    assert [place.cpus for place in placement.shares(2, root, range(8))] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [place.cpus for place in placement.shares(3, root, range(8))] == [(0, 1, 2, 3), (4, 5), (6, 7)]


def test_cpus_numbered_in_turns_over_the_nodes_are_sorted_out(plain_cores):
    found = placement.shares(2, plain_cores("0,2,4,6", "1,3,5,7"), range(8))
    assert found == [Place((0, 2, 4, 6), 4, 0), Place((1, 3, 5, 7), 4, 1)]


def test_neighbours_by_package_and_core_stay_together(plain_cores):
    """As in a node that spans two packages, whose logical CPUs are numbered in turns."""
    root = plain_cores("0-3", **numbers([0, 1, 0, 1], [1, 0, 0, 1]))
    assert [place.cpus for place in placement.shares(4, root, range(4))] == [(2,), (0,), (1,), (3,)]
    assert [place.cpus for place in placement.shares(2, root, range(4))] == [(0, 2), (1, 3)]


def test_only_cpus_of_the_affinity_are_dealt(two_sockets):
    found = placement.shares(2, two_sockets, [1, 2, 9, 5, 14, 15])  # both threads of core 1, one of 2, 5, 6 and 7
    assert found == [Place((1, 2, 9), 2, 0), Place((5, 14, 15), 3, 1)]
    assert placement.shares(2, two_sockets, both(4, 7)) == [Place(both(4, 5), 2, 1), Place(both(6, 7), 2, 1)]


def test_hyper_threads_of_one_core_are_one_core(two_sockets):
    assert placement.shares(2, two_sockets, [3, 11]) == [Place((3, 11), 1, 0)] * 2


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (range(1, 8), [(1, 2, 3), (4, 5, 6, 7)]),
        ([2, 3, 4, 5, 6, 7], [(2, 3), (4, 5, 6, 7)]),
        ([3, 4, 5, 6, 7], [(3, 4, 5), (6, 7)]),  # 1 and 4 by node: half of 2 and 3
    ],
)
def test_a_rank_straddles_nodes_if_its_own_would_leave_it_half_the_cores(plain_cores, affinity, expected):
    found = placement.shares(2, plain_cores("0-3", "4-7"), affinity)
    assert [place.cpus for place in found] == expected


def test_no_rank_is_left_without_cores(plain_cores):
    found = placement.shares(4, plain_cores("0-3", "4-7"), [3, 4, 5, 6, 7])  # two ranks a node, and one has one core
    assert [place.cpus for place in found] == [(3, 4), (5,), (6,), (7,)]


@pytest.mark.parametrize(
    ("cpus", "num", "threads"),
    [(4, 2, [2, 2]), (6.5, 2, [3, 3]), (4, 3, [1, 1, 1]), (0.5, 2, [1, 1]), (8, 3, [3, 3, 2]), (20, 2, [4, 4])],
)
def test_a_quota_is_shared_and_the_cpus_stay(two_sockets, cpus, num, threads):
    free = placement.shares(num, two_sockets, range(16))
    found = placement.shares(num, write(two_sockets, quota(cpus)), range(16))
    assert [place.cores for place in found] == threads
    assert [place.cpus for place in found] == [place.cpus for place in free]


def test_nodes_without_cpus_are_skipped(plain_cores):
    root = plain_cores("0-1", "", "2-3", "")
    assert placement.shares(2, root, range(4)) == [Place((0, 1), 2, 0), Place((2, 3), 2, 2)]


def test_a_system_that_tells_nothing_has_cores_in_no_node(tmp_path):
    assert placement.shares(2, tmp_path, range(4)) == [Place((0, 1), 2, None), Place((2, 3), 2, None)]


def test_the_affinity_of_the_process_is_dealt_by_default():
    (place,) = placement.shares(1)
    assert set(place.cpus) == set(cpu.allowed_cpus(Path("/")))


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="expected at least one rank; got 0"):
        placement.shares(0)
    with pytest.raises(ValueError, match="expected at least one rank; got 0"):
        placement.pin(0, 0)
    with pytest.raises(ValueError, match="expected a number from 0 to 1 for 2 ranks; got 2"):
        placement.pin(2, 2)


@pytest.fixture
def process(monkeypatch):
    """process(affinity, ...) makes this one run on some of 8 CPUs. Returns the affinities it has had, the last one now.

    The CPUs have no topology: their numbers are beyond those of this machine.
    """

    def make(affinity, **environment):
        for name in LAUNCHERS:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        state = [{9000 + number for number in affinity}]
        monkeypatch.setattr(placement, "_before", {})
        monkeypatch.setattr(cpu, "online_cpus", lambda root: tuple(range(9000, 9008)))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: state[-1], raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: state.append(set(cpus)), raising=False)
        return state

    return make


def test_a_rank_is_pinned_to_its_share(process):
    affinities = process(range(8))
    assert placement.pin(1, 2).cpus == (9004, 9005, 9006, 9007)
    assert affinities[-1] == {9004, 9005, 9006, 9007}


def test_pinning_twice_does_not_divide_the_share(process):
    affinities = process(range(8))
    assert placement.pin(1, 2) == placement.pin(1, 2)
    assert placement.pin(3, 4).cpus == (9006, 9007)
    assert placement.pin(0, 4).cpus == (9000, 9001)
    assert affinities[-1] == {9000, 9001}


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_CPU_BIND_TYPE": "mask_cpu:"},
        {"SLURM_CPU_BIND_TYPE": "cores"},
        {"OMPI_COMM_WORLD_LOCAL_RANK": "0"},
        {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_MCA_hwloc_base_binding_policy": "numa"},
    ],
)
def test_what_a_launcher_bound_is_left_alone(process, environment):
    affinities = process(range(4), **environment)
    assert placement.pin(0, 2) is None
    assert len(affinities) == 1


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_CPU_BIND_TYPE": "none"},
        {"SLURM_CPU_BIND_TYPE": ""},
        {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_MCA_hwloc_base_binding_policy": "none"},
        {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "TORCHELASTIC_RUN_ID": "none"},  # what Slurm bound is torchrun's agent
        {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "FULLSTRIDE_PIN": "1"},
    ],
)
def test_a_part_of_the_machine_that_ranks_have_in_common_is_shared(process, environment):
    affinities = process(range(4), **environment)
    assert placement.pin(1, 2).cpus == (9002, 9003)
    assert affinities[-1] == {9002, 9003}


def test_a_launcher_that_left_all_cpus_has_bound_nothing(process):
    process(range(8), SLURM_CPU_BIND_TYPE="mask_cpu:", OMPI_COMM_WORLD_LOCAL_RANK="0")
    assert placement.pin(0, 2).cores == 4


def test_pinning_can_be_switched_off(process):
    affinities = process(range(8), FULLSTRIDE_PIN="0")
    assert placement.pin(0, 2) is None
    assert len(affinities) == 1


def test_a_rank_alone_is_pinned_only_on_demand(process):
    affinities = process(range(8))
    assert placement.pin(0, 1) is None
    assert len(affinities) == 1
    process(range(8), FULLSTRIDE_PIN="1")
    assert placement.pin(0, 1).cores == 8


def test_a_system_that_cannot_pin_is_left_as_it_is(process, monkeypatch):
    process(range(8), FULLSTRIDE_PIN="1")

    def refuse(pid, cpus):
        raise PermissionError("not in this sandbox")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert placement.pin(0, 2) is None
    monkeypatch.delattr(os, "sched_setaffinity")
    assert placement.pin(0, 2) is None


RANK = """
import json, os, sys
from fullstride.machine import placement
assert "torch" not in sys.modules
place = placement.pin(int(sys.argv[1]), 2)
import torch
torch.set_num_threads(place.cores)
torch.ones(1 << 20).add_(1)  # starts its threads
tasks = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
print(json.dumps([place.cpus, place.cores, sorted(os.sched_getaffinity(0)), torch.get_num_threads(), tasks]))
"""


@needs_affinity
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_runs_where_it_is_pinned_with_all_its_threads(rank):
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    command = [sys.executable, "-c", RANK, str(rank)]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    cpus, num_cores, affinity, num_threads, tasks = json.loads(out)
    assert tuple(cpus) == placement.shares(2)[rank].cpus
    assert affinity == cpus
    assert num_threads == num_cores
    assert all(task == cpus for task in tasks)


def test_regions_are_the_nodes_and_sockets_that_are_reached(two_sockets):
    assert placement.regions(two_sockets, range(16)) == (2, 2)
    assert placement.regions(two_sockets, both(0, 3)) == (1, 1)


def test_a_system_that_tells_no_nodes_has_none(tmp_path):
    assert placement.regions(write(tmp_path, cores(["0", "1"])), (0, 1)) == (0, 1)

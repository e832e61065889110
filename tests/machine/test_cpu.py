import os
import platform
import subprocess
import sys

import pytest

from fullstride.machine import cpu, darwin

from .machines import arm64, cache, cores, write, x86


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("5\n", (5,)), ("\n", ()), ("", ())],
)
def test_cpu_lists_are_read_as_the_kernel_writes_them(text, expected):
    assert cpu.cpu_list(text) == expected


def test_usable_cores_are_whole_and_at_least_one(tmp_path):
    def usable(affinity, quota):
        machine = cpu.describe(tmp_path, affinity)
        return cpu.Cpu(**{**machine.__dict__, "quota": quota}).num_usable

    assert usable(range(8), None) == 8
    assert usable(range(8), 1.5) == 1
    assert usable(range(8), 0.25) == 1
    assert usable(range(2), 6.0) == 2
    assert usable(range(8), 3.0) == 3


def test_quota_of_the_cgroup_reaches_the_description(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/job/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/job/memory.max": "1073741824\n",
        },
    )
    machine = cpu.describe(root, affinity=range(16))
    assert (machine.num_affinity, machine.quota, machine.num_usable) == (16, 2.5, 2)
    assert machine.memory_limit_bytes == 1 << 30


def test_hyperthreads_share_a_core(tmp_path):
    machine = cpu.describe(write(tmp_path, cores(["0,4", "1,5", "2,6", "3,7"] * 2)))
    assert (machine.num_logical, machine.num_physical, machine.threads_per_core) == (8, 4, 2)


def test_usable_cores_are_physical_ones_that_the_affinity_reaches(tmp_path):
    root = write(tmp_path, cores(["0,4", "1,5", "2,6", "3,7"] * 2))
    assert cpu.describe(root, affinity=range(8)).num_usable_cores == 4
    assert cpu.describe(root, affinity=[0, 4]).num_usable_cores == 1
    assert cpu.describe(root, affinity=[0, 1, 5]).num_usable_cores == 2
    assert cpu.Cpu(**{**cpu.describe(root, range(8)).__dict__, "quota": 2.5}).num_usable_cores == 2


def test_hybrid_cpu_counts_each_kind_of_core(tmp_path):
    two_big_four_small = ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"]
    machine = cpu.describe(write(tmp_path, cores(two_big_four_small)))
    assert (machine.num_logical, machine.num_physical, machine.threads_per_core) == (8, 6, 2)


def test_older_kernels_name_the_siblings_differently(tmp_path):
    folder = "sys/devices/system/cpu"
    files = {f"{folder}/cpu{i}/topology/thread_siblings_list": "0-1\n" for i in range(2)}
    machine = cpu.describe(write(tmp_path, {f"{folder}/online": "0-1\n", **files}))
    assert (machine.num_physical, machine.threads_per_core) == (1, 2)


def test_offline_cpus_do_not_count(tmp_path):
    files = cores(["0", "1", "2", "3"]) | {"sys/devices/system/cpu/online": "0,2-3\n"}
    assert cpu.describe(write(tmp_path, files)).num_logical == 3


def test_caches_are_counted_once_with_their_sharing(tmp_path):
    files = cores(["0", "1", "2", "3"])
    for i in range(4):
        half = "0-1" if i < 2 else "2-3"
        files |= cache(i, 0, 1, "Data", "32K", str(i)) | cache(i, 1, 1, "Instruction", "32K", str(i))
        files |= cache(i, 2, 2, "Unified", "1024K", str(i)) | cache(i, 3, 3, "Unified", "32768K", half)
    machine = cpu.describe(write(tmp_path, files))
    assert machine.caches == (
        cpu.Cache(1, "data", 32 << 10, num_sharing=1, num_instances=4),
        cpu.Cache(2, "unified", 1 << 20, num_sharing=1, num_instances=4),
        cpu.Cache(3, "unified", 32 << 20, num_sharing=2, num_instances=2),
    )
    assert machine.last_level_bytes == 64 << 20


def test_numa_nodes_may_have_no_cpus(tmp_path):
    folder = "sys/devices/system/node"
    root = write(
        tmp_path,
        {
            f"{folder}/node0/cpulist": "0-1\n",
            f"{folder}/node0/meminfo": "Node 0 MemTotal:        1024 kB\nNode 0 MemFree: 3 kB\n",
            f"{folder}/node1/cpulist": "2-3\n",
            f"{folder}/node1/meminfo": "Node 1 MemTotal:        2048 kB\n",
            f"{folder}/node10/cpulist": "\n",
            f"{folder}/possible": "0-10\n",
        },
    )
    assert cpu.describe(root).nodes == (
        cpu.Node(0, (0, 1), 1024 << 10),
        cpu.Node(1, (2, 3), 2048 << 10),
        cpu.Node(10, (), None),
    )


def test_x86_features_are_named(tmp_path):
    flags = "fpu avx2 fma avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 amx_tile amx_bf16"
    machine = cpu.describe(write(tmp_path, x86(flags, num_cpus=3, model="Intel(R) Xeon(R) 8488C")))
    assert (machine.model, machine.architecture) == ("Intel(R) Xeon(R) 8488C", "x86_64")
    assert machine.num_logical == 3  # by /proc/cpuinfo where there is no /sys
    present = {name for name, there in machine.features.items() if there}
    assert present == {"avx2", "fma", "avx512", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"}
    assert {"amx_int8", "avx_vnni"} <= machine.features.keys()


def test_a_name_without_a_number_is_told_apart_by_family_and_model(tmp_path):
    machine = cpu.describe(write(tmp_path, x86("avx2", model="AMD EPYC")))
    assert machine.model == "AMD EPYC (family 26, model 2)"


def test_avx512_without_its_subsets_is_not_enough(tmp_path):
    assert not cpu.describe(write(tmp_path, x86("avx2 avx512f avx512dq"))).features["avx512"]


@pytest.mark.parametrize(
    ("part", "model"), [("0xd40", "Arm Neoverse-V1"), ("0xfff", "unknown (implementer 0x41, part 0xfff)")]
)
def test_arm_cores_are_named_by_their_numbers(tmp_path, part, model):
    machine = cpu.describe(write(tmp_path, arm64("fp asimd asimddp sve bf16 i8mm", part=part)))
    assert (machine.model, machine.architecture) == (model, "arm64")
    assert {name for name, there in machine.features.items() if there} == {"asimd", "asimddp", "sve", "bf16", "i8mm"}


def test_an_empty_system_is_described_without_guesses(tmp_path):
    machine = cpu.describe(tmp_path, affinity=[0])
    assert machine.caches == machine.nodes == ()
    assert machine.quota is machine.memory_bytes is machine.last_level_bytes is None
    assert machine.num_usable == 1


def test_this_machine_is_described():
    machine = cpu.describe()
    assert machine.architecture == {"AMD64": "x86_64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    assert 1 <= machine.num_usable <= machine.num_logical
    assert machine.num_physical <= machine.num_logical
    assert machine.memory_bytes
    assert machine.memory_bytes > 1 << 28


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_of_the_process_is_seen():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from fullstride.machine import cpu; print(cpu.describe().num_affinity, cpu.describe().num_usable)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["1", "1"]


def test_macos_values_are_understood():
    apple = {
        "hw.nperflevels": "2",
        "hw.perflevel0.logicalcpu": "4", "hw.perflevel0.l1dcachesize": "131072",
        "hw.perflevel0.l2cachesize": "16777216", "hw.perflevel0.cpusperl2": "4",
        "hw.perflevel1.logicalcpu": "4", "hw.perflevel1.l1dcachesize": "65536",
        "hw.perflevel1.l2cachesize": "4194304", "hw.perflevel1.cpusperl2": "2",
        "hw.optional.AdvSIMD": "1", "hw.optional.arm.FEAT_BF16": "0",
    }  # fmt: skip
    assert list(darwin.caches(apple)) == [
        (1, "data", 128 << 10, 1, 4), (2, "unified", 16 << 20, 4, 1),
        (1, "data", 64 << 10, 1, 4), (2, "unified", 4 << 20, 2, 2),
    ]  # fmt: skip
    assert darwin.features(apple) == {"asimd": True, "bf16": False}
    assert list(darwin.caches({})) == []

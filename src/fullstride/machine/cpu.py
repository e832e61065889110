"""What this machine is: CPU, cores and how many of them are ours, caches, NUMA nodes, instruction sets, memory.

Everything is read from /proc, /sys and the cgroup file systems below `root`, so that tests can build a machine in a
folder; on macOS from sysctl. What a system does not tell is left out (None, or an empty tuple), never guessed.
"""

import os
import platform
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import cgroup, darwin

# The names of /proc/cpuinfo. AVX-512 means the subsets that the avx512 kernels use.
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_X86_FEATURES = ("avx2", "fma", "avx_vnni", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
_ARM_FEATURES = ("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2")

# /proc/cpuinfo of arm64 has numbers instead of names: (implementer, part), from the manuals of the cores.
_ARM_CORES = {
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0b"): "Arm Cortex-A76",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x48", "0xd01"): "HiSilicon Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
}


@dataclass(frozen=True)
class Cache:
    """All caches of one level, kind and size."""

    level: int
    kind: str  # "data" or "unified"
    bytes: int  # of one
    num_sharing: int  # logical CPUs that share one
    num_instances: int


@dataclass(frozen=True)
class Node:
    """A NUMA node. One without CPUs holds memory only."""

    number: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


@dataclass(frozen=True)
class Cpu:
    model: str
    architecture: str
    num_logical: int  # online, of the whole machine
    num_physical: int
    threads_per_core: int  # of the core that has most: cores of a hybrid CPU differ
    num_affinity: int  # logical CPUs this process may run on
    num_affinity_cores: int  # physical cores that those lie on
    quota: float | None  # CPUs' worth of time the cgroups allow, None for no limit
    caches: tuple[Cache, ...]
    nodes: tuple[Node, ...]
    features: dict[str, bool]
    memory_bytes: int | None
    memory_limit_bytes: int | None  # by the cgroups, None for no limit

    @property
    def num_usable(self) -> int:
        """Threads that can really run at once: by affinity and quota, whole ones, at least one."""
        allowed = self.num_affinity if self.quota is None else min(self.num_affinity, self.quota)
        return max(1, int(allowed))

    @property
    def num_usable_cores(self) -> int:
        """The same, with one thread a physical core: two share the units that products keep busy."""
        return min(self.num_usable, self.num_affinity_cores)

    @property
    def last_level_bytes(self) -> int | None:
        """All caches of the last level together: what a working set must exceed to live in memory."""
        if not self.caches:
            return None
        last = max(cache.level for cache in self.caches)
        return sum(cache.bytes * cache.num_instances for cache in self.caches if cache.level == last)


def describe(root: str | Path = "/", affinity: Collection[int] | None = None) -> Cpu:
    """The machine whose /proc and /sys lie below `root`, and this process's affinity unless one is given."""
    root = Path(root)
    if platform.system() == "Darwin" and root == Path("/"):
        return _describe_darwin()
    info = _cpuinfo(root)
    online = online_cpus(root)
    siblings = physical_cores(root, online)
    if affinity is None:
        affinity = allowed_cpus(root)
    return Cpu(
        model=info.model,
        architecture=info.architecture,
        num_logical=len(online),
        num_physical=len(siblings),
        threads_per_core=max(len(cpus) for cpus in siblings),
        num_affinity=len(affinity),
        num_affinity_cores=len(physical_cores(root, affinity)),
        quota=cgroup.cpu_quota(root),
        caches=_caches(root, online),
        nodes=numa_nodes(root),
        features=info.features,
        memory_bytes=_kilobytes("MemTotal", _read(root / "proc/meminfo")),
        memory_limit_bytes=cgroup.memory_limit(root),
    )


def cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's notation: "0-3,8" is (0, 1, 2, 3, 8), and nothing is ()."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def online_cpus(root: Path) -> tuple[int, ...]:
    """The logical CPUs of the whole machine that are switched on."""
    listed = cpu_list(_read(root / "sys/devices/system/cpu/online"))
    return listed or tuple(range(_cpuinfo(root).num_processors or os.cpu_count() or 1))


def allowed_cpus(root: Path) -> Collection[int]:
    """The affinity of the calling thread; where there is no such thing, all that are online."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else online_cpus(root)


def physical_cores(root: Path, cpus: Collection[int]) -> set[tuple[int, ...]]:
    """The physical cores that these logical CPUs lie on, each as all the logical CPUs on it."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # The second name is that of kernels before 5.6.
        cores.add(cpu_list(_read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")) or (cpu,))
    return cores


def core_number(root: Path, cpu: int) -> tuple[int, int]:
    """(package, core in it), by which neighbours on the chip stand side by side; zeros where the system does not tell.

    Logical CPUs are numbered by the firmware, on some machines in turns over the packages.
    """
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    package, core = (_read(topology / name).strip() for name in ("physical_package_id", "core_id"))
    return int(package or 0), int(core or 0)


def numa_nodes(root: Path) -> tuple[Node, ...]:
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        memory = _kilobytes("MemTotal", _read(folder / "meminfo"))
        nodes.append(Node(int(folder.name.removeprefix("node")), cpu_list(_read(folder / "cpulist")), memory))
    return tuple(sorted(nodes, key=lambda node: node.number))


@dataclass(frozen=True)
class _CpuInfo:
    model: str
    architecture: str
    features: dict[str, bool]
    num_processors: int


def _cpuinfo(root: Path) -> _CpuInfo:
    text = _read(root / "proc/cpuinfo")
    fields: dict[str, str] = {}
    for key, value in re.findall(r"^([\w ]+?)\s*:[ \t]*(.*)$", text, re.MULTILINE):
        fields.setdefault(key, value.strip())  # of the first processor
    num_processors = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    if "flags" in fields:
        flags = set(fields["flags"].split())
        features = {"avx512": flags >= _AVX512} | {name: name in flags for name in _X86_FEATURES}
        return _CpuInfo(_x86_model(fields), "x86_64", features, num_processors)
    if "Features" in fields:
        flags = set(fields["Features"].split())
        core = (fields.get("CPU implementer", "?"), fields.get("CPU part", "?"))
        model = fields.get("model name") or _ARM_CORES.get(core, f"unknown (implementer {core[0]}, part {core[1]})")
        return _CpuInfo(model, "arm64", {name: name in flags for name in _ARM_FEATURES}, num_processors)
    return _CpuInfo(platform.processor() or "unknown", platform.machine(), {}, num_processors)


def _x86_model(fields: Mapping[str, str]) -> str:
    """Virtual machines call Zen 4 and Zen 5 alike "AMD EPYC", though one is twice as fast: the numbers tell."""
    name, family, model = fields.get("model name", "unknown"), fields.get("cpu family"), fields.get("model")
    if re.search(r"\d", name) or family is None or model is None:
        return name
    return f"{name} (family {family}, model {model})"


def _caches(root: Path, online: Collection[int]) -> tuple[Cache, ...]:
    shared: dict[tuple[int, str, tuple[int, ...]], int] = {}
    for cpu in online:
        for folder in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            kind, size = _read(folder / "type").strip().lower(), _read(folder / "size").strip()
            if kind in ("data", "unified") and size:
                cpus = cpu_list(_read(folder / "shared_cpu_list")) or (cpu,)
                shared[int(_read(folder / "level")), kind, cpus] = _size(size)
    kinds = Counter((level, kind, size, len(cpus)) for (level, kind, cpus), size in shared.items())
    return tuple(Cache(*kind, count) for kind, count in sorted(kinds.items()))


def _describe_darwin() -> Cpu:
    values = darwin.sysctl()
    num_logical = int(values.get("hw.logicalcpu", os.cpu_count() or 1))
    num_physical = int(values.get("hw.physicalcpu", num_logical))
    return Cpu(
        model=values.get("machdep.cpu.brand_string", "unknown"),
        architecture=platform.machine(),
        num_logical=num_logical,
        num_physical=num_physical,
        threads_per_core=max(1, num_logical // num_physical),
        num_affinity=num_logical,
        num_affinity_cores=num_physical,
        quota=None,
        caches=tuple(Cache(*cache) for cache in darwin.caches(values)),
        nodes=(),
        features=darwin.features(values),
        memory_bytes=int(values["hw.memsize"]) if "hw.memsize" in values else None,
        memory_limit_bytes=None,
    )


def _size(text: str) -> int:
    """ "32768K" in bytes."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit


def _kilobytes(key: str, text: str) -> int | None:
    match = re.search(rf"\b{key}:\s*(\d+) kB", text)
    return int(match[1]) * 1024 if match else None


def _read(path: Path) -> str:
    """The text of a file, or nothing where it is missing or may not be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

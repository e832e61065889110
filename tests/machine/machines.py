"""Machines that exist only as files in a folder."""

from collections.abc import Mapping
from pathlib import Path

V2_MOUNT = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1_MOUNT = "31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def cores(siblings: list[str]) -> dict[str, str]:
    """Topology of CPUs 0, 1, ...: which logical CPUs share the core of each."""
    folder = "sys/devices/system/cpu"
    topology = {f"{folder}/cpu{i}/topology/core_cpus_list": f"{cpus}\n" for i, cpus in enumerate(siblings)}
    return {f"{folder}/online": f"0-{len(siblings) - 1}\n", **topology}


def cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    values = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}
    return {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}


def x86(flags: str, num_cpus: int = 1, model: str = "Some CPU @ 2.0GHz") -> dict[str, str]:
    entry = (
        "processor\t: {i}\nvendor_id\t: GenuineIntel\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {model}\n"
        "flags\t\t: {flags}\n\n"
    )
    return {"proc/cpuinfo": "".join(entry.format(i=i, model=model, flags=flags) for i in range(num_cpus))}


def arm64(features: str, implementer: str = "0x41", part: str = "0xd40") -> dict[str, str]:
    text = f"processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: {features}\nCPU implementer\t: {implementer}\n"
    return {"proc/cpuinfo": f"{text}CPU architecture: 8\nCPU part\t: {part}\nCPU revision\t: 1\n\n"}

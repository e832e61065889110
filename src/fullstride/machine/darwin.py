"""What macOS tells about the machine, through `sysctl`."""

import re
import subprocess
from collections.abc import Iterator, Mapping

_FEATURES = {
    "avx2": "hw.optional.avx2_0",
    "avx512": "hw.optional.avx512f",
    "asimd": "hw.optional.AdvSIMD",
    "asimddp": "hw.optional.arm.FEAT_DotProd",
    "bf16": "hw.optional.arm.FEAT_BF16",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
}


def sysctl() -> dict[str, str]:
    """Every value of `hw` and `machdep.cpu`; nothing where the command is missing."""
    try:
        command = ["/usr/sbin/sysctl", "hw", "machdep.cpu"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^([\w.]+): (.*)$", text, re.MULTILINE))


def features(values: Mapping[str, str]) -> dict[str, bool]:
    return {name: values[key] == "1" for name, key in _FEATURES.items() if key in values}


def caches(values: Mapping[str, str]) -> Iterator[tuple[int, str, int, int, int]]:
    """(level, kind, bytes, sharing, instances). Apple's CPUs list them per kind of core, Intel's once."""
    kinds = int(values.get("hw.nperflevels", "0"))
    for prefix in [f"hw.perflevel{i}." for i in range(kinds)] or ["hw."]:
        cores = int(values.get(f"{prefix}logicalcpu", "1"))
        for level, kind, key in [(1, "data", "l1d"), (2, "unified", "l2"), (3, "unified", "l3")]:
            size = int(values.get(f"{prefix}{key}cachesize", "0"))
            if size:
                sharing = int(values.get(f"{prefix}cpusperl{level}", "1" if level < 3 else str(cores)))
                yield level, kind, size, sharing, max(1, cores // sharing)

"""The memory of this process: huge pages, the allocator in use, sizes, and keeping the heap.

glibc gives every large block back to the kernel when it is freed, so a training step faults its activations and
gradients in again, page by page. keep_heap() makes the process hold on to them; tests/machine/test_memory.py counts the
page faults with and without.
"""

import ctypes
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

# malloc.h of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_SETTINGS = {
    "M_MMAP_MAX": (_M_MMAP_MAX, 0),  # no block of its own for large tensors: those are unmapped when freed
    "M_TRIM_THRESHOLD": (_M_TRIM_THRESHOLD, 2**31 - 1),  # do not shrink the heap
    "M_TOP_PAD": (_M_TOP_PAD, 256 << 20),  # grow it in large steps
}
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


@dataclass(frozen=True)
class Heap:
    """What keep_heap() did."""

    kept: bool
    note: str


def keep_heap() -> Heap:
    """Tells glibc's malloc to keep what is freed. Harmless elsewhere and to repeat; `FULLSTRIDE_HEAP=0` forbids it."""
    if os.environ.get("FULLSTRIDE_HEAP", "1") == "0":
        return Heap(False, "FULLSTRIDE_HEAP=0")
    in_use = allocator()
    if not in_use.startswith("glibc"):
        return Heap(False, f"{in_use} has its own settings")
    mallopt = ctypes.CDLL(None).mallopt
    refused = [name for name, (parameter, value) in _SETTINGS.items() if mallopt(parameter, value) != 1]
    if refused:
        return Heap(False, f"glibc refused {', '.join(refused)}")
    return Heap(True, ", ".join(f"{name}={value}" for name, (_, value) in _SETTINGS.items()))


def huge_pages(root: str | Path = "/") -> str | None:
    """The setting of transparent huge pages, "always", "madvise" or "never"; None where there are none."""
    match = re.search(r"\[(\w+)\]", _read(Path(root) / "sys/kernel/mm/transparent_hugepage/enabled"))
    return match[1] if match else None


def allocator(root: str | Path = "/") -> str:
    """Who serves malloc: the replacement mapped into this process, else glibc with its version."""
    names = [Path(library).name for library in mapped_libraries(root)]
    for other in _OTHER_ALLOCATORS:
        for name in names:
            if other in name:
                return name
    if "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {}):
        version = os.confstr("CS_GNU_LIBC_VERSION")  # "glibc 2.36"; None on musl
        if version:
            return version.replace("glibc", "glibc malloc")
    return "the system's malloc"


def mapped_libraries(root: str | Path = "/") -> list[str]:
    """Paths of the shared libraries in this process; empty where /proc does not tell."""
    paths = re.findall(r"(/.*)$", _read(Path(root) / "proc/self/maps"), re.MULTILINE)
    return sorted({path for path in paths if re.search(r"\.so\b", path)})


def resident_bytes(root: str | Path = "/") -> int | None:
    return _status("VmRSS", root)


def peak_bytes(root: str | Path = "/") -> int | None:
    """The most this process has ever held."""
    peak = _status("VmHWM", root)
    if peak is None and Path(root) == Path("/") and sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak


def _status(key: str, root: str | Path) -> int | None:
    match = re.search(rf"^{key}:\s*(\d+) kB", _read(Path(root) / "proc/self/status"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

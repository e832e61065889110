"""The memory of this process: keeping the heap, huge pages, giving memory back, sizes.

glibc gives every large block back to the kernel when it is freed, so a training step faults its activations and
gradients in again, page by page. `import fullstride` calls keep_heap(), which does two things about it:

- malloc keeps what is freed, and every thread takes from the one heap that can be kept whole.
- All the address space that the heap could come to need is taken at once and marked for huge pages, then given back to
  malloc. Nothing is occupied until it is written to. Unlike torch's THP_MEM_ALLOC_ENABLE, which is read once at the
  first tensor and inherited by child processes, this works at any time and stays within the process.

Page faults of the training steps of a 41M-parameter MLP (784-4096-4096-4096-1000, batch 128, fused AdamW), the first
and those after the third, and seconds of CPU time a step on one core of an AMD EPYC, best of 14 and three runs:

    as it comes                       125,000   32,770 to 42,947   0.55
    heap kept                         125,000   0                  0.49
    and THP_MEM_ALLOC_ENABLE=1         12,000   0                  0.48
    and address space marked instead      512   0                  0.47

tests/machine/test_memory.py counts them for a smaller one.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import cgroup

if TYPE_CHECKING:
    import torch

# malloc.h of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_SETTINGS = {
    "M_MMAP_MAX": (_M_MMAP_MAX, 0),  # no block of its own for large tensors: those are unmapped when freed
    "M_TRIM_THRESHOLD": (_M_TRIM_THRESHOLD, -1),  # never shrink the heap
    "M_TOP_PAD": (_M_TOP_PAD, 256 << 20),  # grow it in large steps
    # The heaps of further threads end at 64 MiB, and larger blocks are unmapped when freed: 20,481 page faults for
    # every 120 MiB that a second thread takes and frees, and none with one heap for all.
    "M_ARENA_MAX": (_M_ARENA_MAX, 1),
}
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
_MADV_HUGEPAGE = 14
_HUGE_PAGE = 2 << 20
_LEAST_RESERVE = 1 << 30  # less is not worth asking for


@dataclass(frozen=True)
class Heap:
    """What keep_heap() did."""

    kept: bool
    note: str
    huge_pages: str = "not asked for"


_heap: Heap | None = None  # what the last call came to
_reserved = 0  # bytes of address space marked for huge pages


def tune() -> list[str]:
    """Keeps the heap, unless that was done at import, and says in lines what was done."""
    keep_heap()
    return status()


def keep_heap() -> Heap:
    """Tells glibc's malloc to keep what is freed. Harmless elsewhere and to repeat; `FULLSTRIDE_HEAP=0` forbids it."""
    global _heap
    _heap = _keep_heap()
    return _heap


def _keep_heap() -> Heap:
    if os.environ.get("FULLSTRIDE_HEAP", "1") == "0":
        return Heap(False, "FULLSTRIDE_HEAP=0")
    in_use = allocator()
    if not in_use.startswith("glibc"):
        return Heap(False, f"{in_use} has its own settings")
    mallopt = ctypes.CDLL(None).mallopt
    refused = [name for name, (parameter, value) in _SETTINGS.items() if mallopt(parameter, value) != 1]
    if refused:
        return Heap(False, f"glibc refused {', '.join(refused)}")
    return Heap(True, ", ".join(f"{name}={value}" for name, (_, value) in _SETTINGS.items()), _reserve())


def _reserve() -> str:
    """Marks for huge pages what malloc will hand out from now on. Says what came of it."""
    global _reserved
    if not _reserved:
        if huge_pages() in (None, "never"):
            return "none: switched off in this system"
        if address_space_counts():
            return "not asked for: this process may not take address space freely (ulimit -v or -d, overcommit)"
        _reserved = _mark_top()
    return f"{as_size(_reserved)} of address space marked" if _reserved else "refused by the system"


def _mark_top() -> int:
    """Lets the heap grow to all the memory there is, marks that, and frees it: malloc keeps it. Bytes marked.

    The kernel drops the mark for what the heap grows by later, so it cannot be done piece by piece.
    """
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    size = memory_bytes() * 7 // 8 // _HUGE_PAGE * _HUGE_PAGE  # more than all with its padding would be refused
    while size >= _LEAST_RESERVE:
        block, end = ctypes.c_void_p(), libc.sbrk(ctypes.c_ssize_t(0))
        if libc.posix_memalign(ctypes.byref(block), ctypes.c_size_t(_HUGE_PAGE), ctypes.c_size_t(size)) == 0:
            # A thread that already has a heap of its own gets the block elsewhere, and free() unmaps it.
            in_heap = libc.sbrk(ctypes.c_ssize_t(0)) - end >= size
            marked = in_heap and libc.madvise(block, ctypes.c_size_t(size), _MADV_HUGEPAGE) == 0
            libc.free(block)
            return size if marked else 0
        size //= 2
    return 0


def release() -> int:
    """Gives freed memory back to the system now, and says how many bytes. The next steps fault theirs in again."""
    global _reserved
    if not allocator().startswith("glibc"):
        return 0
    before = resident_bytes() or 0
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    if _reserved:
        _reserved = _mark_top()  # what was marked has gone, too
    return max(0, before - (resident_bytes() or 0))


def status() -> list[str]:
    """What was done about the memory of this process, and what it holds, in lines for people."""
    if _heap and _heap.kept:
        done = f"heap kept, huge pages: {_heap.huge_pages}"
    else:
        done = f"heap as it comes: {_heap.note}" if _heap else "heap as it comes"
    return [done, f"memory held {as_size(resident_bytes())}, at most {as_size(peak_bytes())}"]


def heap_kept() -> bool:
    """Whether malloc of this process was told to keep what is freed."""
    return _heap is not None and _heap.kept


@dataclass(frozen=True)
class Report:
    """Bytes, each piece of memory counted once however many tensors show it."""

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int  # with the low halves of split weights
    resident: int | None  # of the whole process, now
    peak: int | None  # of the whole process, ever

    def __str__(self) -> str:
        values = [(name.replace("_", " "), as_size(value)) for name, value in self.__dict__.items()]
        return "\n".join(f"{name:<16} {value:>9}" for name, value in values)


def report(model: "torch.nn.Module", optimizer: "torch.optim.Optimizer | None" = None) -> Report:
    """What a model and its optimizer hold."""
    import torch

    seen: set[int] = set()

    def count(tensors: Iterable[Any]) -> int:
        total = 0
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in seen:
                    seen.add(storage.data_ptr())
                    total += storage.nbytes()
        return total

    parameters = list(model.parameters())
    states = optimizer.state.values() if optimizer is not None else []
    return Report(
        parameters=count(parameters),
        buffers=count(model.buffers()),
        gradients=count(parameter.grad for parameter in parameters),
        optimizer_state=count(value for state in states for value in state.values()),
        resident=resident_bytes(),
        peak=peak_bytes(),
    )


def huge_pages(root: str | Path = "/") -> str | None:
    """The setting of transparent huge pages, "always", "madvise" or "never"; None where there are none."""
    match = re.search(r"\[(\w+)\]", _read(Path(root) / "sys/kernel/mm/transparent_hugepage/enabled"))
    return match[1] if match else None


def address_space_counts(root: str | Path = "/") -> bool:
    """Whether address space is limited, by ulimit or as part of strict overcommit, though nothing lies in it."""
    import resource

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    strict = _read(Path(root) / "proc/sys/vm/overcommit_memory").strip() == "2"
    return strict or any(limit != resource.RLIM_INFINITY for limit in limits)


def memory_bytes(root: str | Path = "/") -> int:
    """What this process may come to hold: the memory of the machine or, if less, of its control groups."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read(Path(root) / "proc/meminfo"), re.MULTILINE)
    limits = [int(match[1]) * 1024 if match else None, cgroup.memory_limit(Path(root))]
    return min((limit for limit in limits if limit is not None), default=0)


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


def as_size(size: int | None) -> str:
    if size is None:
        return "unknown"
    for unit, shift in [("GiB", 30), ("MiB", 20), ("KiB", 10)]:
        if size >= 1 << shift:
            amount = size / (1 << shift)
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
    return f"{size} bytes"

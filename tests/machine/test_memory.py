import os
import subprocess
import sys

import pytest

from fullstride.machine import memory

from .machines import write

glibc_only = pytest.mark.skipif(
    not memory.allocator().startswith("glibc"), reason="keep_heap() is about glibc's allocator"
)

# Allocates and frees a tensor above glibc's largest threshold, 32 MiB, 19 times, as training steps do, and counts the
# page faults of the last nine. The heap still grows in the first seven: glibc keeps as many of the scraps that aligned
# blocks leave beside them apart, and until then no freed block is quite large enough for the next.
STEPS = """
import resource, torch
from fullstride.machine import memory
heap = memory.keep_heap()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(19):
    torch.ones(9 << 20)
    if step == 9: start = faults()
print(heap.kept, faults() - start)
"""


def page_faults(**environment: str) -> tuple[bool, int]:
    run = subprocess.run(
        [sys.executable, "-c", STEPS], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    kept, faults = run.stdout.split()
    return kept == "True", int(faults)


@glibc_only
def test_kept_heap_spares_the_page_faults():
    kept, few = page_faults()
    left, many = page_faults(FULLSTRIDE_HEAP="0")
    assert (kept, left) == (True, False)
    assert many >= 9 * 18  # one for each 2 MiB huge page of 9 x 36 MiB, 512 times more with small pages
    assert few < many / 10


def test_environment_forbids_it(monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_HEAP", "0")
    assert memory.keep_heap() == memory.Heap(False, "FULLSTRIDE_HEAP=0")


@pytest.mark.parametrize("name", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2.1"])
def test_other_allocators_are_found_and_left_alone(tmp_path, monkeypatch, name):
    maps = (
        "5581a000-5581b000 r--p 00000000 fe:00 123    /usr/bin/python3.11\n"
        f"7f1c0000-7f1c1000 r-xp 00001000 fe:00 456    /usr/lib/{name}\n"
        "7f1d0000-7f1d1000 r-xp 00001000 fe:00 789    /usr/lib/libc.so.6\n"
        "7ffc0000-7ffc1000 rw-p 00000000 00:00 0      [stack]\n"
    )
    root = write(tmp_path, {"proc/self/maps": maps})
    assert memory.mapped_libraries(root) == sorted([f"/usr/lib/{name}", "/usr/lib/libc.so.6"])
    assert memory.allocator(root) == name
    monkeypatch.setattr(memory, "allocator", lambda: name)
    assert not memory.keep_heap().kept


@pytest.mark.parametrize(
    ("text", "expected"), [("always [madvise] never\n", "madvise"), ("[always] madvise never\n", "always"), ("", None)]
)
def test_huge_page_setting(tmp_path, text, expected):
    assert memory.huge_pages(write(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})) == expected


def test_missing_huge_pages_are_not_guessed(tmp_path):
    assert memory.huge_pages(tmp_path) is None


def test_sizes_of_a_process(tmp_path):
    root = write(tmp_path, {"proc/self/status": "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n"})
    assert memory.resident_bytes(root) == 1 << 20
    assert memory.peak_bytes(root) == 2 << 20


def test_sizes_of_this_process():
    peak = memory.peak_bytes()
    assert peak is not None
    assert peak >= (memory.resident_bytes() or 0)
    assert peak > 1 << 20

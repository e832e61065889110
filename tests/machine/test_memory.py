import os
import subprocess
import sys

import pytest
import torch

from fullstride.machine import memory

from .machines import V2_MOUNT, write

glibc_only = pytest.mark.skipif(
    not memory.allocator().startswith("glibc"), reason="keep_heap() is about glibc's allocator"
)

# Training steps of a small model whose largest gradient, 40 MB, is above glibc's largest threshold; page faults of the
# last nine. The heap still grows in the first seven: glibc keeps as many of the scraps that aligned blocks leave beside
# them apart, and until then no freed block may be quite large enough for the next.
TRAINING = """
import resource, sys
if sys.argv[1] == "before": import fullstride
import torch
model = torch.nn.Sequential(torch.nn.Linear(100, 2000), torch.nn.ReLU(), torch.nn.Linear(2000, 5000))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import fullstride
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(18):
    if step == 9: start = faults()
    optimizer.zero_grad(); model(torch.ones(8, 100)).sum().backward(); optimizer.step()
print(faults() - start)
"""


def run(code: str, *arguments: str, **environment: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    out = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True).stdout
    return out.splitlines()


@glibc_only
def test_training_steps_do_not_fault_whenever_the_package_is_imported():
    for when in ("before", "after"):
        faults = min(int(run(TRAINING, when)[0]) for _ in range(2))  # a machine at full load adds some
        assert faults < 9 * 10  # a step may have a thousand


@glibc_only
def test_training_steps_fault_when_the_heap_must_be_left_alone():
    (faults,) = run(TRAINING, "before", FULLSTRIDE_HEAP="0")
    assert int(faults) >= 9 * 19  # one for each 2 MiB huge page of the gradient, 512 times more with small pages


@glibc_only
def test_tensors_of_other_threads_are_kept_too():
    (out,) = run("""
import resource, threading, fullstride, torch
def work():
    for step in range(19):
        torch.ones(20 << 20)  # 80 MiB, more than glibc keeps in the heap of a second thread
        if step == 9: start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
thread = threading.Thread(target=work); thread.start(); thread.join()
""")
    assert int(out) < 1000


@glibc_only
def test_import_keeps_the_heap_without_torch_and_without_a_trace_in_the_environment():
    (out,) = run("""
import os, sys; before = dict(os.environ); import fullstride
from fullstride.machine import memory
print(memory.heap_kept(), "torch" in sys.modules, dict(os.environ) == before)
""")
    assert out == "True False True"


HUGE = """
import re, fullstride, torch
from fullstride.machine import memory
torch.ones(1)
def huge(): return int(re.search(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps_rollup").read())[1]) << 10
"""


@glibc_only
@pytest.mark.skipif(
    memory.huge_pages() in (None, "never") or memory.address_space_counts(), reason="huge pages cannot be had here"
)
def test_tensors_lie_in_huge_pages_also_after_a_release():
    out = run(f"""{HUGE}
x = torch.ones(16 << 20); print(huge()); del x
memory.release(); print(huge()); x = torch.ones(16 << 20); print(huge())
""")
    first, released, second = map(int, out)
    assert first > 32 << 20  # of 64 MiB
    assert released < first - (32 << 20)
    assert second > released + (32 << 20)


@glibc_only
def test_release_gives_back_what_was_freed():
    (out,) = run("""
import fullstride, torch
from fullstride.machine import memory
torch.ones(16 << 20); before = memory.resident_bytes(); print(memory.release(), before - memory.resident_bytes())
""")
    given, gone = map(int, out.split())
    assert given > 60 << 20
    assert abs(given - gone) < 1 << 20


@glibc_only
def test_limited_address_space_is_not_taken():
    kept, pages = run("""
import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from fullstride.machine import memory
heap = memory.keep_heap(); print(heap.kept); print(heap.huge_pages)
""")
    assert kept == "True"
    assert "may not take address space freely" in pages


def test_strict_overcommit_counts_address_space(tmp_path, monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not memory.address_space_counts(tmp_path)
    assert not memory.address_space_counts(write(tmp_path, {"proc/sys/vm/overcommit_memory": "0\n"}))
    assert memory.address_space_counts(write(tmp_path, {"proc/sys/vm/overcommit_memory": "2\n"}))


def test_memory_is_that_of_the_machine_or_of_the_cgroup(tmp_path):
    assert memory.memory_bytes(tmp_path) == 0
    root = write(tmp_path, {"proc/meminfo": "MemTotal:        4096 kB\nMemFree: 1 kB\n"})
    assert memory.memory_bytes(root) == 4 << 20
    groups = {"proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": f"{V2_MOUNT}\n"}
    assert memory.memory_bytes(write(root, {**groups, "sys/fs/cgroup/job/memory.max": "1048576\n"})) == 1 << 20


@glibc_only
def test_status_says_what_was_done(monkeypatch):
    kept = memory.tune()
    assert kept[0].startswith("heap kept, huge pages: ")
    monkeypatch.setenv("FULLSTRIDE_HEAP", "0")
    left = memory.tune()
    monkeypatch.undo()
    memory.keep_heap()
    assert left[0] == "heap as it comes: FULLSTRIDE_HEAP=0"
    assert left[-1].startswith("memory held ")


def test_report_counts_each_piece_of_memory_once():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(10, 20, bias=False), "b": torch.nn.Linear(10, 20, bias=False)})
    model["b"].weight = model["a"].weight
    model.register_buffer("all", torch.zeros(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert memory.report(model).gradients == 0
    model["a"](torch.ones(2, 10)).sum().backward()
    optimizer.step()
    report = memory.report(model, optimizer)
    assert (report.parameters, report.buffers, report.gradients, report.optimizer_state) == (800, 12, 800, 800)
    assert report.resident == pytest.approx(memory.resident_bytes(), rel=0.1)
    assert "optimizer state  800 bytes" in str(report)


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


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "unknown"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1023 << 10, "1023 KiB"), (20 << 30, "20 GiB")],
)
def test_sizes_are_written_without_exponents(size, text):
    assert memory.as_size(size) == text

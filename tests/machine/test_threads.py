import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fullstride import _native, runtime
from fullstride.machine import cpu, threads

from .machines import V2_MOUNT, cores, write


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """machine(...) makes a machine with so many cores, and torch with so many threads. Returns what torch is set to."""

    def make(num_cores, torch_threads, quota=None, affinity=None, **environment):
        for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        files = cores([str(i) for i in range(num_cores)])
        if quota:
            files |= {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": f"{V2_MOUNT}\n"}
            files |= {"sys/fs/cgroup/cpu.max": f"{int(quota * 100000)} 100000\n"}
        there = cpu.describe(write(tmp_path, files), affinity or range(num_cores))
        monkeypatch.setattr(cpu, "describe", lambda: there)
        put_back = threads.as_they_are()  # those of this process, not those of the machine that is made up
        monkeypatch.setattr(threads, "as_they_are", lambda: put_back)
        state = [torch_threads]
        monkeypatch.setattr(torch, "get_num_threads", lambda: state[-1])
        monkeypatch.setattr(torch, "set_num_threads", state.append)
        return state

    return make


def test_cores_are_taken_where_torch_took_what_the_machine_has(machine):
    torch_threads = machine(8, 8)
    assert threads.set_threads() == threads.Threads(8, "8 usable cores", True)
    assert torch_threads == [8]  # nothing to set


@pytest.mark.parametrize(
    ("quota", "affinity", "count"), [(2.5, None, 2), (0.5, None, 1), (6.0, range(4), 4), (None, range(3), 3)]
)
def test_quota_and_affinity_limit_what_torch_took(machine, quota, affinity, count):
    torch_threads = machine(8, 8, quota, affinity)
    assert threads.set_threads().count == count
    assert torch_threads == [8, count]


@pytest.mark.parametrize(("num_processes", "count"), [("2", 4), ("3", 2), ("16", 1)])
def test_torchrun_is_corrected_to_the_share_of_a_process(machine, num_processes, count):
    machine(8, 1, OMP_NUM_THREADS="1", TORCHELASTIC_RUN_ID="none", LOCAL_WORLD_SIZE=num_processes)
    chosen = threads.set_threads()
    assert chosen.count == count
    shared = f"8 usable cores shared by {num_processes} processes"
    assert chosen.reason == f"{shared}, instead of torchrun's OMP_NUM_THREADS=1"
    assert threads.set_threads() == chosen


@pytest.mark.parametrize(
    "launcher", [{}, {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "2"}]
)
def test_one_thread_that_torchrun_did_not_set_is_a_wish(machine, launcher):
    machine(8, 1, OMP_NUM_THREADS="1", **launcher)
    assert threads.set_threads() == threads.Threads(1, "OMP_NUM_THREADS=1", True)


def test_wish_under_torchrun_is_respected(machine):
    machine(8, 3, OMP_NUM_THREADS="3", TORCHELASTIC_RUN_ID="none", LOCAL_WORLD_SIZE="4")
    assert threads.set_threads() == threads.Threads(3, "OMP_NUM_THREADS=3", True)


def test_threads_that_a_script_set_stay(machine):
    machine(8, 3)
    assert threads.set_threads() == threads.Threads(3, "torch was set to 3", True)


def test_more_threads_than_cores_come_only_by_argument(machine):
    machine(2, 8, OMP_NUM_THREADS="8")
    assert threads.set_threads().count == 2
    assert threads.set_threads(5) == threads.Threads(5, "as asked for", True)


def test_share_is_taken_under_other_launchers(machine):
    machine(8, 8, LOCAL_WORLD_SIZE="2")
    assert threads.set_threads().count == 4


@pytest.mark.parametrize("wish", [0, -1, 2.0, "4", True])
def test_impossible_number_is_refused(wish):
    with pytest.raises(ValueError, match="expected a whole number from 1 on"):
        threads.set_threads(wish)


class ThreadsOfTheWorker(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return threads.set_threads().count


def test_worker_of_a_dataloader_keeps_its_one_thread(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # which the worker has, too
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(threads.cpu.Cpu, "num_usable_cores", 8)
    assert [int(batch) for batch in DataLoader(ThreadsOfTheWorker(), num_workers=1)] == [1]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_set_after_torch_has_counted_is_followed():
    code = (
        "import os, torch; torch.set_num_threads(3); os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from fullstride.machine import threads; print(threads.set_threads().count, torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1", "1"]


def test_every_thread_of_torch_flushes_denormals(num_threads):
    num_threads(3)
    denormals = torch.full((3 << 20,), 1e-40)  # cut over all threads
    assert (denormals * 1).count_nonzero() == 3 << 20
    threads.set_threads(3)
    assert (denormals * 1).view(torch.int32).count_nonzero() == 0
    num_threads(4)  # a thread that was not there before
    assert (denormals * 1).view(torch.int32).count_nonzero() == 0


def test_what_was_done_is_one_line():
    assert str(threads.Threads(2, "2 usable cores", True)) == "threads 2: 2 usable cores; denormals flushed to zero"
    assert "cannot flush" in str(threads.Threads(2, "2 usable cores", False))


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("in_between", [1, 3])
def test_threads_and_denormals_come_back(num_threads, flushes, in_between):
    num_threads(2)
    runtime.current().change("test", threads.as_they_are, "as before")
    torch.set_flush_denormal(flushes)
    _native.library().fs_flush_denormals_everywhere(flushes)
    put_back = threads.as_they_are()
    threads.set_threads(3)
    threads.set_threads(in_between)
    put_back()
    assert torch.get_num_threads() == 2
    denormals = torch.full((3 << 20,), 1e-40)  # cut over all threads
    assert bool((denormals * 1).view(torch.int32).count_nonzero() == 0) is flushes
    num_threads(3)
    assert bool((denormals * 1).view(torch.int32).count_nonzero() == 0) is flushes

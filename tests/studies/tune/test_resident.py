"""How much memory a process and its workers hold."""

import subprocess
import sys

from fullstride.studies.tune import resident

SIZE = 64 << 20
# A process that holds 64 MiB has a fork that touches nothing of it, then one that writes all of it.
# They live until it ends. Only it reads its input: what a fork reads there would be missing.
PROGRAM = """
import os, sys
held = bytearray(b"x" * (64 << 20))
last, first = os.pipe()
def fork(writes):
    if os.fork() == 0:
        os.close(first)
        if writes:
            held[:] = b"y" * len(held)
        print("ready", flush=True)
        os.read(last, 1)
        os._exit(0)
print("ready", flush=True); sys.stdin.readline()
fork(False); sys.stdin.readline()
fork(True); sys.stdin.read()
"""


def test_what_forks_share_counts_once():
    with subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        held, counts = [], []
        for _ in range(3):
            assert process.stdout.readline() == "ready\n"
            held.append(resident.held(process.pid))
            counts.append(len(resident.descendants(process.pid)))
            process.stdin.write("\n")
            process.stdin.flush()
        process.stdin.close()
    assert counts == [0, 1, 2]
    assert held[0] > SIZE
    assert held[1] < held[0] + SIZE / 2
    assert held[2] > held[1] + SIZE


def test_a_process_that_is_gone_holds_nothing():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert resident.held(process.pid) == 0


def test_the_limit_is_a_share_of_what_is_available(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 1000000 kB\n")
    assert resident.limit(tmp_path) == int(0.9 * 1_000_000 * 1024)


def test_a_machine_that_is_small_for_what_is_free_limits_by_its_size(tmp_path):
    """In a control group the machine has more free than the group may take."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 500000 kB\nMemAvailable: 1000000 kB\n")
    (tmp_path / "proc/self/status").write_text("VmRSS:\t100000 kB\n")
    assert resident.limit(tmp_path) == int(0.9 * 400_000 * 1024)


def test_what_others_of_the_control_group_hold_is_not_free(tmp_path):
    files = {
        "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\n",
        "proc/self/status": "VmRSS:\t1000 kB\n",
        "proc/self/cgroup": "0::/a\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/a/memory.max": "1000000000\n",
        "sys/fs/cgroup/a/memory.current": "700000000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 600000000\ninactive_file 100000000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert resident.limit(tmp_path) == int(0.9 * 400_000_000)


def test_without_proc_the_limit_is_a_share_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(resident.os, "sysconf", lambda name: 1000)
    assert resident.limit(tmp_path) == int(0.9 * 1000 * resident._PAGE)


def test_there_is_no_limit_where_nobody_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(resident.os, "sysconf", lambda name: -1)
    assert resident.limit(tmp_path) is None

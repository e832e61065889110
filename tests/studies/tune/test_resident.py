"""How much memory a process and its workers hold."""

import subprocess
import sys

from fullstride.studies.tune import resident

SIZE = 64 << 20
# A process that holds 64 MiB has a fork that touches nothing of it, then one that writes all of it.
PROGRAM = """
import os, sys
held = bytearray(b"x" * (64 << 20))
def fork(writes):
    if os.fork() == 0:
        if writes:
            held[:] = b"y" * len(held)
        print("ready", flush=True)
        sys.stdin.read()
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


def test_there_is_no_limit_where_nobody_tells(tmp_path):
    assert resident.limit(tmp_path) is None

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fullstride.machine import core_use
from fullstride.machine.core_use import CoreUse, _living_children, _ticks

from .machines import write

STAT = "cpu  0 0 0 0\ncpu0 {0} 0 0 {1} 0 0 0 0 0 0\ncpu1 0 0 0 {2} 0 0 0 {3} 0 0\ncpu7 5 0 0 5 0 0 0 0 0 0\nintr 1\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return write(tmp_path, {"proc/stat": STAT.format(100, 100, 100, 0)})


def test_each_core_that_may_be_used_has_its_share(machine):
    use = CoreUse(machine)
    write(machine, {"proc/stat": STAT.format(175, 125, 200, 0)})
    assert use.read().cores == {0: 0.75, 1: 0.0}


def test_a_reading_is_of_the_time_since_the_last(machine):
    use = CoreUse(machine)
    write(machine, {"proc/stat": STAT.format(200, 100, 200, 0)})
    use.read()
    write(machine, {"proc/stat": STAT.format(200, 200, 300, 0)})
    assert use.read().cores == {0: 0.0, 1: 0.0}


def test_stolen_time_is_not_busy(machine):
    use = CoreUse(machine)
    write(machine, {"proc/stat": STAT.format(200, 100, 150, 50)})
    assert use.read().cores == {0: 1.0, 1: 0.0}


def test_what_came_too_soon_is_in_the_next_reading(machine):
    use = CoreUse(machine)
    write(machine, {"proc/stat": STAT.format(104, 100, 104, 0)})
    assert use.read() is None
    write(machine, {"proc/stat": STAT.format(104, 116, 120, 0)})
    assert use.read().cores == {0: 0.2, 1: 0.0}


def test_a_system_that_does_not_tell_has_the_process_alone(tmp_path):
    use = CoreUse(tmp_path).read()
    assert use.cores == {}
    assert use.own >= 0


TICKS = os.sysconf("SC_CLK_TCK")
CHILD = "{0} (a (bad) name) S 1 1 1 0 -1 0 0 0 0 0 {1} {2} 0 0 20 0 1 0 5 0 0\n"


def children(*pids):
    return {"proc/self/task/10/children": " ".join(map(str, pids)) + " ", "proc/self/task/11/children": ""}


def child(pid, user, system):
    return {f"proc/{pid}/stat": CHILD.format(pid, user, system)}


def test_its_own_time_is_that_of_the_process_and_of_children_that_live_and_are_gone(machine, monkeypatch):
    process, gone, wall = iter((1.0, 1.5)), iter((0.0, 0.25)), iter((100.0, 102.0))
    clocks = SimpleNamespace(process_time=lambda: next(process), perf_counter=lambda: next(wall))
    monkeypatch.setattr(core_use, "time", clocks)
    monkeypatch.setattr(os, "times", lambda: os.times_result((9.0, 9.0, next(gone), 0.0, 9.0)))
    write(machine, children(21) | child(21, 0, 0))
    use = CoreUse(machine)
    write(machine, {"proc/stat": STAT.format(200, 100, 200, 0)} | child(21, 2 * TICKS, TICKS))
    assert use.read().own == (0.5 + 0.25 + 3.0) / 2.0


def test_children_that_live_are_those_of_every_thread(tmp_path):
    write(tmp_path, children(21, 22) | child(21, TICKS, 0) | child(22, 0, 2 * TICKS))
    write(tmp_path, {"proc/self/task/11/children": "23"} | child(23, 4 * TICKS, 0))
    assert _living_children(tmp_path) == 7.0


def test_a_child_that_has_just_ended_counts_for_nothing(tmp_path):
    write(tmp_path, children(21) | {"proc/self/task/11/children": "23"} | child(23, TICKS, 0))
    assert _living_children(tmp_path) == 1.0


def test_without_proc_there_are_no_children(tmp_path):
    assert _living_children(tmp_path) == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_machine_is_read():
    assert _ticks(Path("/")).keys() == os.sched_getaffinity(0)

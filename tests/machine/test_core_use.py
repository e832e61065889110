import os
import sys
import time

import pytest

from fullstride.machine.core_use import CoreUse

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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_computes_is_seen():
    use = CoreUse()
    began = time.process_time()
    while time.process_time() - began < 0.3:
        pass
    found = use.read()
    assert found.cores.keys() == os.sched_getaffinity(0)
    assert max(found.cores.values()) > 0
    assert 0 < found.own <= len(found.cores) + 0.5

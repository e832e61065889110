import os

import pytest

from fullstride.machine import load

from .machines import write

STAT = "cpu  1000 0 500 8000 0 0 0 {stolen} 0 0\ncpu0 1 2 3\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    return write(tmp_path, {"proc/loadavg": "0.50 1.0 2.0 1/99 7\n", "proc/stat": STAT.format(stolen=0)})


def test_a_quiet_machine_is_quiet(machine):
    assert load.Watch(machine).busy(0.1) == ""


def test_load_before_the_measurement_is_seen(machine):
    write(machine, {"proc/loadavg": "3.50 1.0 2.0 1/99 7\n"})
    assert load.Watch(machine).busy(0.1) == "load 3.5 on 4 cores"


def test_time_stolen_meanwhile_is_seen(machine):
    watch = load.Watch(machine)
    write(machine, {"proc/stat": STAT.format(stolen=0).replace("8000", "8900").replace(" 0 0 0 0 0", " 0 0 0 100 0")})
    assert watch.busy(0.1) == "10% of the time stolen by other virtual machines"


def test_timings_far_apart_are_seen(machine):
    assert load.Watch(machine).busy(0.8) == "calls 80% above the best"


def test_a_system_that_does_not_tell_is_taken_for_quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert load.Watch(tmp_path).busy(0.0) == ""
    assert load.load(tmp_path) == 0.0

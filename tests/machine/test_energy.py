import os
from pathlib import Path

import pytest

from fullstride.machine.energy import Meter

from .machines import write

RANGE = 262143328850


def zone(name: str, kind: str, energy: int) -> dict[str, str]:
    values = {"name": kind, "energy_uj": str(energy), "max_energy_range_uj": str(RANGE)}
    return {f"sys/class/powercap/{name}/{file}": f"{value}\n" for file, value in values.items()}


def count(root: Path, name: str, energy: int) -> None:
    (root / f"sys/class/powercap/{name}/energy_uj").write_text(f"{energy}\n")


def test_joules_are_those_since_the_meter_was_made(tmp_path):
    meter = Meter(write(tmp_path, zone("intel-rapl:0", "package-0", 5_000_000)))
    count(tmp_path, "intel-rapl:0", 7_500_000)
    assert meter.read() == 2.5
    count(tmp_path, "intel-rapl:0", 8_000_000)
    assert meter.read() == 3.0
    assert meter.label == "measured"


def test_all_packages_are_added(tmp_path):
    files = zone("intel-rapl:0", "package-0", 0) | zone("intel-rapl:1", "package-1-die-0", 0)
    meter = Meter(write(tmp_path, files))
    count(tmp_path, "intel-rapl:0", 1_000_000)
    count(tmp_path, "intel-rapl:1", 2_000_000)
    assert meter.read() == 3.0


@pytest.mark.parametrize(
    ("name", "kind"), [("intel-rapl:0:0", "core"), ("intel-rapl:1", "psys"), ("intel-rapl-mmio:0", "package-0")]
)
def test_nothing_is_counted_twice(tmp_path, name, kind):
    meter = Meter(write(tmp_path, zone("intel-rapl:0", "package-0", 0) | zone(name, kind, 0)))
    count(tmp_path, "intel-rapl:0", 1_000_000)
    count(tmp_path, name, 500_000)
    assert meter.read() == 1.0


def test_a_counter_that_starts_again_goes_on(tmp_path):
    meter = Meter(write(tmp_path, zone("intel-rapl:0", "package-0", RANGE - 1_000_000)))
    count(tmp_path, "intel-rapl:0", 2_000_000)
    assert meter.read() == 3.0


def test_a_system_without_counters_says_so(tmp_path):
    meter = Meter(tmp_path)
    assert meter.label == "unavailable: this system has no /sys/class/powercap"
    assert meter.read() is None


def test_a_system_that_counts_no_package_says_so(tmp_path):
    meter = Meter(write(tmp_path, zone("intel-rapl:0", "psys", 0)))
    assert meter.label == "unavailable: no CPU package in /sys/class/powercap"
    assert meter.read() is None


def test_what_only_root_may_read_names_the_file_and_the_command(tmp_path, monkeypatch):
    write(tmp_path, zone("intel-rapl:0", "package-0", 0))
    read_text = Path.read_text

    def refuse(path, *arguments, **options):  # root, who may run the tests, is refused nothing
        if path.name == "energy_uj":
            raise PermissionError(13, os.strerror(13))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    meter = Meter(tmp_path)
    file = "/sys/class/powercap/intel-rapl:0/energy_uj"
    assert meter.label == f"unavailable: only root may read {file} (sudo chmod a+r {file})"
    assert meter.read() is None


def test_a_counter_that_goes_away_makes_the_sum_unknown_for_good(tmp_path):
    files = zone("intel-rapl:0", "package-0", 0) | zone("intel-rapl:1", "package-1", 0)
    meter = Meter(write(tmp_path, files))
    count(tmp_path, "intel-rapl:0", 1_000_000)
    counter = tmp_path / "sys/class/powercap/intel-rapl:1/energy_uj"
    counter.unlink()
    assert meter.read() is None
    assert meter.label.startswith("unavailable: cannot read /sys/class/powercap/intel-rapl:1/energy_uj: ")
    counter.write_text("9000000\n")
    assert meter.read() is None


def test_a_counter_that_stands_still_is_not_zero_joules(tmp_path):
    meter = Meter(write(tmp_path, zone("intel-rapl:0", "package-0", 0)))
    assert meter.read() is None
    assert meter.label == "unavailable: the counters stand still"
    count(tmp_path, "intel-rapl:0", 1_000_000)
    assert meter.read() == 1.0
    assert meter.label == "measured"


def test_a_counter_that_is_no_number_says_what_it_is(tmp_path):
    write(tmp_path, zone("intel-rapl:0", "package-0", 0))
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("none\n")
    assert Meter(tmp_path).label == "unavailable: /sys/class/powercap/intel-rapl:0/energy_uj holds 'none', not a number"

"""What a machine reaches, measured for real. How much is for it to tell."""

import json

from benchmarks import figures, machine, render, roofs
from benchmarks.result_files import File, machine_of, part

from fullstride.machine.streams import MIXES


def test_rates_are_measured_with_their_spread_and_shown(tmp_path, capsys):
    machine.main(["--rounds", "2", "--json", str(tmp_path / "machine.json")])
    found = json.loads((tmp_path / "machine.json").read_text())
    assert "fp32" in found["gflops"]
    assert tuple(found["gigabytes_per_second"]) == MIXES
    for rate in (*found["gflops"].values(), *found["gigabytes_per_second"].values()):
        assert 0 < rate["lowest"] <= rate["median"] <= rate["highest"]
    assert f"{found['gigabytes_per_second']['update']['median']:.1f} GB/s" in capsys.readouterr().out

    name = machine_of(found["conditions"])
    files = [File(name, "machine", [part("python -m benchmarks.machine", found)])]
    assert roofs.of(files, name).products["fp32"].median == max(
        rate["median"] for kind, rate in found["gflops"].items() if kind.startswith("fp32")
    )
    text = render.rendered("<!-- begin: machines -->\n<!-- end -->", files)
    assert figures.problems(text, files) == []

"""`fullstride bench kernels` as a whole, on the op that is quickest to measure."""

import json
import re
import subprocess
import sys

import pytest

from ...patience import PATIENCE


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """What it printed, and its JSON."""
    file = tmp_path_factory.mktemp("bench") / "kernels.json"
    done = run("--only", "contrastive_loss", "--rounds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "fullstride", "bench", "kernels", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)


def test_every_row_tells_its_rate_and_share_of_the_peak(command):
    text, content = command
    found = re.findall(r"\d+ ms  \d+\.\d\dx \[.*\] torch +\d+\.\d GFLOP/s, \d+% of fp32 peak\n", text)
    assert len(found) == len(content["results"]) == 3
    for entry in content["results"]:
        assert entry["gflops"] > 0
        assert entry["share_of_peak"] > 0
        assert entry["precision"] == "fp32"
        assert [peer["name"] for peer in entry["peers"]] == ["torch"]


def test_what_is_left_out_is_said_in_both(command):
    text, content = command
    if content["conditions"]["isa"] == "portable":
        pytest.skip("there is no other variant here")
    assert text.count("portable: left out, the products are torch's\n") == 3
    assert all(entry["left_out"] == {"portable": "the products are torch's"} for entry in content["results"])


def test_an_unknown_op_is_one_line():
    done = run("--only", "layer_nrom")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fullstride: no kernel rows named layer_nrom; there are: adam, attention")
    assert done.stderr.count("\n") == 1

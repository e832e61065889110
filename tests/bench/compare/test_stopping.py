"""`fullstride compare` in a process of its own, stopped by a signal and continued by the same command."""

import json
import os
import signal
import subprocess
import sys

import psutil

from fullstride import cli
from tests.cli.commands import TINY, one_line

from .tiny import OURS


def test_a_comparison_that_was_stopped_is_continued_by_the_same_command(tmp_path):
    words = ["compare", "mlp", *TINY, "--seconds", "3", "--to", str(tmp_path / "study")]
    command = [sys.executable, "-m", "fullstride", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("[1/"):
                break
        sides = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert one_line(errors).startswith("fullstride: stopped by SIGINT; ")
    assert len(sides) >= 2
    assert not [side for side in sides if side.is_running()]
    before = json.loads((tmp_path / "study" / "study.json").read_text())
    num_rounds = len(before["parts"]) - 1
    assert list(before["parts"])[:2] == ["start", "round 1"]
    assert before["outcome"] is None

    file = tmp_path / "compare.json"
    # A process of its own: in this one another test may have set another number of threads, which would be refused.
    again = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    after = json.loads((tmp_path / "study" / "study.json").read_text())
    assert {name: after["parts"][name] for name in before["parts"]} == before["parts"]
    assert list(after["parts"])[num_rounds + 1] == "continued 1"
    found = json.loads(file.read_text())
    assert found == after["outcome"]
    assert found["turns"]["rounds"] > num_rounds
    steps = after["parts"]["continued 1"]["steps"]
    assert any(note.startswith(f"stopped after {steps} steps and continued") for note in found["notes"])
    ours = next(side for side in found["sides"] if side["name"] == OURS)
    assert len(ours["losses"]) == steps + (found["turns"]["rounds"] - num_rounds) * found["turns"]["steps"]
    assert "they are taken again, which is not measured" in again.stdout


def test_what_cannot_be_a_study_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("all my work")
    assert cli.main(["compare", "mlp", *TINY, "--to", str(tmp_path)]) == 2
    assert "has other things in it" in one_line(capsys.readouterr().err)
    assert os.listdir(tmp_path) == ["thesis.txt"]

"""`fullstride ablate`, stopped by a signal between parts and continued by the same command."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from fullstride.bench.step.process import our_environment
from fullstride.studies.ablate.outcome import TOGETHER
from fullstride.studies.ablate.run import PLAN

from ...cli.commands import TINY
from ...patience import PATIENCE, wait_until


def command(folder):
    words = ["ablate", "mlp", "--only", "heap", "--minutes", "0.01", "--to", str(folder), *TINY]
    return [sys.executable, "-m", "fullstride", *words]


def parts_in(folder):
    file = folder / "study.json"
    return json.loads(file.read_text())["parts"] if file.exists() else {}


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_stopped_study_goes_on_with_what_it_has(number, tmp_path):
    folder, environment = tmp_path / "study", our_environment() | {"OMP_WAIT_POLICY": "passive"}
    running = subprocess.Popen(
        command(folder), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    wait_until(lambda: TOGETHER in parts_in(folder) or running.poll() is not None)
    children = psutil.Process(running.pid).children(recursive=True)
    os.kill(running.pid, number)
    _, errors = running.communicate(timeout=PATIENCE)
    before = parts_in(folder)
    assert running.returncode == 128 + number, errors
    assert errors.strip().splitlines()[-1] == (
        f"fullstride: stopped by {number.name}; {len(before)} parts are kept in {folder}: the same command goes on"
    )
    assert children
    assert not [child for child in children if child.is_running()]
    assert list(before)[:2] == [PLAN, TOGETHER]
    assert len(before) < 4

    done = subprocess.run(
        command(folder), env=environment, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, check=True
    )
    after = parts_in(folder)
    assert {name: after[name] for name in before} == before  # not measured again
    assert list(after) == [PLAN, TOGETHER, "heap, alone", "heap, left out"]
    assert f"{len(before) - 1} of 3 parts were done before: going on" in done.stdout
    assert json.loads((folder / "study.json").read_text())["outcome"]["alone"][0]["technique"] == "heap"

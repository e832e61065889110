"""docs/distributed.md: its commands are run as they stand, but for addresses and the length of the training."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fullstride.recipes.config import Distributed
from fullstride.train.checkpoints.store import Store

from ..patience import PATIENCE
from . import hosts

DOCUMENT = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
SHORT = (
    "--steps 3 --evaluation.every 0 --logging.every 1 --samples.tokens 0 --threads 1 --no-report"
    " --model.width 32 --model.layers 1 --model.heads 2 --model.hidden 48"
)
BIN = str(Path(sys.executable).parent)


@pytest.fixture
def text(tmp_path, monkeypatch):
    """llama-char's data, where it is looked for."""
    folder = tmp_path / "data" / "shakespeare"
    folder.mkdir(parents=True)
    (folder / "one.txt").write_text("the king went out, and the queen\nwent in.\n" * 200)
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))
    return f"--data.path {folder}"


def blocks(start):
    found = re.findall(r"^```\w*\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    return [block for block in found if block.startswith(start)]


def saved(run):
    newest = Store(run / "checkpoints").newest()
    return newest and newest.step


@hosts.needs_hosts
def test_the_commands_for_two_hosts(text, tmp_path):
    commands = [block for block in blocks("torchrun") if "--node-rank" in block]
    assert len(commands) == 2
    with hosts.network(2) as pair:
        processes = []
        for host, command in zip(pair, commands, strict=True):
            words = f"{command.strip().replace('10.0.0.1', pair[0].address)} {text} {SHORT}"
            env = {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/bin"}
            processes.append(host.start(shlex.split(words), env=env, cwd=tmp_path))
        assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    assert saved(tmp_path / "runs" / "two-hosts") == 3


@hosts.needs_hosts
def test_the_script_for_slurm(text, tmp_path):
    """srun and scontrol are stand-ins: they start a command on each host, and name the hosts."""
    (script,) = blocks("#!/bin/bash")
    (tmp_path / "job.sh").write_text(script.replace("llama-char", f"llama-char {text} {SHORT}"))
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    with hosts.network(2) as pair:
        (bin_folder / "scontrol").write_text(f"#!/bin/sh\nprintf '{pair[0].address}\\n{pair[1].address}\\n'\n")
        start = 'ip netns exec {} env SLURM_NODEID={} "$@" & p{}=$!'
        starts = "\n".join(start.format(host.namespace, node, node) for node, host in enumerate(pair))
        (bin_folder / "srun").write_text(f"#!/bin/bash\n{starts}\nwait $p0 && wait $p1\n")
        for name in ("scontrol", "srun"):
            (bin_folder / name).chmod(0o755)
        env = os.environ | {
            "PATH": f"{bin_folder}:{BIN}:/usr/sbin:/usr/bin:/bin", "SLURM_JOB_NODELIST": "a,b", "SLURM_NNODES": "2",
        }  # fmt: skip
        job = ["bash", "job.sh"]
        ended = subprocess.run(job, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert saved(tmp_path / "runs" / "slurm") == 3


def test_every_setting_of_the_table_is_a_field():
    fields = {f"distributed.{name}" for name in Distributed.__dataclass_fields__}
    told = set(re.findall(r"`(distributed\.\w+)`", DOCUMENT))
    assert told <= fields

"""A process is killed; torch's agent starts all anew, and they go on from the last checkpoint, without a person."""

import re
import signal
import subprocess
import sys

import pytest

from fullstride.recipes import config_files
from fullstride.run_folder.metrics import read
from fullstride.train.checkpoints.store import Store

from ..patience import PATIENCE
from ..train.runs import assert_same_tensors, final, losses
from . import training
from .training import train

CONFIG = training.mlp(steps=20, checkpoints={"every": 5}, evaluation={"every": 10})
LAUNCH = """
import sys
from fullstride.distributed.launching import launch
sys.exit(launch(sys.argv[3:], int(sys.argv[1]), int(sys.argv[2]))[0])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(2, CONFIG, tmp_path_factory.mktemp("whole") / "run")


def launch(tmp_path, restarts, place, rank, step, num=2):
    file = tmp_path / "config.yaml"
    file.write_text(config_files.to_yaml(CONFIG))
    words = ["tests.distributed.killing", place, rank, step, "train", "--config", file, "--folder", tmp_path / "run"]
    command = [sys.executable, "-c", LAUNCH, str(num), str(restarts), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def num_starts(run):
    return sum(row["kind"] == "event" and row["event"] == "start" for row in read(run))


@pytest.mark.parametrize(("place", "rank"), [("forward", 1), ("backward", 0), ("sum", 1), ("saving", 0)])
def test_a_killed_process_brings_the_run_back_by_itself(place, rank, whole, tmp_path):
    ended = launch(tmp_path, 1, place, rank, 10 if place == "saving" else 12)
    assert ended.returncode == 0, ended.stderr
    assert_same_tensors(final(whole)[0], final(tmp_path / "run")[0])
    assert losses(whole) == losses(tmp_path / "run")  # no sample lost and none twice in what counts
    assert num_starts(tmp_path / "run") == 2


def test_a_process_that_trains_alone_is_brought_back_too(tmp_path):
    ended = launch(tmp_path, 1, "forward", 0, 12, num=1)
    assert ended.returncode == 0, ended.stderr
    whole = train(1, CONFIG, tmp_path / "whole")
    assert_same_tensors(final(whole)[0], final(tmp_path / "run")[0])
    assert num_starts(tmp_path / "run") == 2


def test_without_restarts_the_run_ends_and_can_be_resumed(whole, tmp_path):
    ended = launch(tmp_path, 0, "sum", 1, 12)
    assert ended.returncode == 128 + signal.SIGKILL
    assert re.search(r"rank 0 on \S+ lost another process: ", ended.stderr), ended.stderr
    assert Store(tmp_path / "run" / "checkpoints").steps()[-1] == 12  # the first one saved what it had
    training.goes_on(2, tmp_path / "run")
    assert_same_tensors(final(whole)[0], final(tmp_path / "run")[0])

"""A damaged checkpoint is passed over with a warning, and the run goes on from the one before to the same bits."""

import shutil
import signal

import pytest

from fullstride.train.checkpoints.store import Store

from ..train.runs import assert_same_run, small
from .processes import Commands, Pause

# What a checkpoint in the middle of an accumulation consists of.
FILES = [
    "model.safetensors", "optimizer.safetensors", "gradients.safetensors",
    "optimizer.json", "state.json", "manifest.json",
]  # fmt: skip
OLDER, NEWER = "step-00000005", "step-00000007"


@pytest.fixture(scope="session")
def interrupted(memory_folder):
    """A run with checkpoints of steps 5 and 7, the latter in the middle of an accumulation."""
    folder = memory_folder / "interrupted"
    folder.mkdir()
    commands = Commands(folder)
    training = commands.train(folder / "run", small(), Pause("loss", 14)).until_paused()
    training.send(signal.SIGTERM)
    code, text = training.go_on()
    commands.close()
    assert code == 143, text
    return folder / "run"


def truncate(data):
    return data[: len(data) // 2]


def flip_a_bit(data):
    at = 2 * len(data) // 3
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def damage(run, checkpoint, file, how):
    path = run / "checkpoints" / checkpoint / file
    path.write_bytes(how(path.read_bytes()))


def test_these_are_all_files_of_a_checkpoint(interrupted):
    assert sorted(path.name for path in (interrupted / "checkpoints" / NEWER).iterdir()) == sorted(FILES)
    assert Store(interrupted / "checkpoints").steps() == [5, 7]


@pytest.mark.parametrize("how", [truncate, flip_a_bit])
@pytest.mark.parametrize("file", FILES)
def test_damage_to_a_file_costs_the_steps_since_the_older_checkpoint(commands, run, interrupted, whole, file, how):
    shutil.copytree(interrupted, run)
    damage(run, NEWER, file, how)
    text = commands.finish(run)
    assert f"warning: checkpoint {run / 'checkpoints' / NEWER} passed over: {file} " in text
    assert text.count("passed over") == 1
    assert [line for line in text.splitlines() if "step  6/12" in line]  # which the damaged one had behind it
    assert_same_run(run, whole)


def test_a_bit_of_the_step_in_the_manifest_is_noticed(commands, run, interrupted, whole):
    """Which leaves a manifest that can be read."""
    shutil.copytree(interrupted, run)
    damage(run, NEWER, "manifest.json", lambda data: data.replace(b'"step": 7', b'"step": 5'))
    assert "passed over: manifest.json cannot be used: it does not have its checksum" in commands.finish(run)
    assert_same_run(run, whole)


def test_damage_to_every_checkpoint_costs_the_whole_run(commands, run, interrupted, whole):
    shutil.copytree(interrupted, run)
    damage(run, OLDER, "optimizer.safetensors", truncate)
    damage(run, NEWER, "manifest.json", flip_a_bit)
    text = commands.finish(run)
    assert text.count("passed over") == 2
    assert f"no checkpoint in {run}: starting from the first step" in text
    assert_same_run(run, whole)

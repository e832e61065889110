"""Disks that are full or cannot be written: one clear line, the last good checkpoint stays, and resuming goes on."""

import re
import resource
import signal
import sys

import pytest

from fullstride.train.checkpoints.store import Store

from ..train.runs import assert_same_run, small
from .disks import Disk
from .processes import Pause, last_line, until

MEBI = 1 << 20
STEP_6 = 12  # micro-batches before it: the checkpoint of step 5 is there, that of step 10 and a best one to come
UNTOUCHED = "those saved before are untouched"
BACKGROUND = [small(checkpoints={"background": background}) for background in (False, True)]

if sys.platform != "linux":
    pytest.skip("mounts of a process of its own are Linux's", allow_module_level=True)


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "disk", 8 * MEBI)
    yield disk
    disk.close()


def train_to_step_6(commands, run, config):
    """Paused there, with the checkpoint of step 5 in the folder: one saved in the background may be late."""
    training = commands.train(run, config, Pause("loss", STEP_6)).until_paused()
    until(lambda: Store(run / "checkpoints").steps() == [5], "a checkpoint")
    return training


def ends_with_one_line(code, text):
    """The last line, and no traceback before it."""
    assert code == 1
    assert "Traceback" not in text
    assert text.count("fullstride: ") == 1
    return last_line(text)


@pytest.mark.parametrize("config", BACKGROUND, ids=["at once", "in the background"])
def test_a_disk_too_full_for_a_checkpoint_ends_the_run(commands, disk, whole, config):
    run = disk.path / "run"
    training = train_to_step_6(commands, run, config)
    disk.fill(leave=MEBI // 4)
    line = ends_with_one_line(*training.go_on())
    assert line.startswith(f"fullstride: checkpoint of step 8 not saved in {run / 'checkpoints'}: expected ")
    assert line.endswith(f"KiB; free some; {UNTOUCHED}")
    assert Store(run / "checkpoints").steps() == [5]
    again = ends_with_one_line(*commands.resume(run).wait())  # as long as nobody makes room
    assert again.startswith(line.partition(" of free space")[0])
    disk.empty()
    commands.finish(run)
    assert_same_run(run, whole)


def test_a_disk_too_full_for_a_row_of_metrics_ends_the_run(commands, disk, run):
    config = small(steps=40, evaluation={"every": 0}, checkpoints={"every": 20})
    limited = disk.path / "run"
    training = commands.train(limited, config, Pause("loss", 2 * 21)).until_paused()
    disk.fill(leave=0)
    line = ends_with_one_line(*training.go_on())
    assert line == f"fullstride: cannot write {limited / 'metrics.jsonl'}: No space left on device"
    assert Store(limited / "checkpoints").steps() == [20]
    disk.empty()
    commands.finish(limited)
    assert commands.train(run, config).wait()[0] == 0
    assert_same_run(limited, run)


def test_a_disk_that_is_full_from_the_start_is_one_line(commands, disk, whole):
    run = disk.path / "run"
    training = train_to_step_6(commands, run, small())
    training.send(signal.SIGKILL)
    training.wait()
    disk.fill(leave=0)
    for command in (commands.train(disk.path / "new", small()), commands.resume(run)):
        line = ends_with_one_line(*command.wait())
        assert re.fullmatch(rf"fullstride: cannot write {disk.path}/.*: No space left on device", line), line
    disk.empty()
    commands.finish(run)
    assert_same_run(run, whole)
    assert commands.train(disk.path / "new", small()).wait()[0] == 0


@pytest.mark.parametrize("config", BACKGROUND, ids=["at once", "in the background"])
def test_a_file_that_may_not_grow_ends_the_run(commands, run, config):
    """What a quota does, without a mount: a file of weights is refused halfway."""
    large = small(model={"hidden": [256, 256]}, checkpoints={"background": config.checkpoints.background})
    training = train_to_step_6(commands, run, large)
    resource.prlimit(training.pid, resource.RLIMIT_FSIZE, (MEBI // 8, MEBI // 8))
    line = ends_with_one_line(*training.go_on())
    folder = run / "checkpoints"
    assert line == f"fullstride: checkpoint of step 8 not saved in {folder}: File too large; {UNTOUCHED}"
    assert sorted(path.name for path in folder.iterdir()) == ["best-00000004", "step-00000005"]
    commands.finish(run)
    whole = run.parent / "whole"
    assert commands.train(whole, large).wait()[0] == 0
    assert_same_run(run, whole)


def test_checkpoints_that_cannot_be_written_any_more_end_the_run(commands, disk, whole):
    run = disk.path / "run"
    training = train_to_step_6(commands, run, small())
    disk.make_read_only(run / "checkpoints")
    line = ends_with_one_line(*training.go_on())
    folder = run / "checkpoints"
    assert line == f"fullstride: checkpoint of step 8 not saved in {folder}: Read-only file system; {UNTOUCHED}"
    assert Store(run / "checkpoints").steps() == [5]
    disk.make_read_only(run / "checkpoints", False)
    commands.finish(run)
    assert_same_run(run, whole)


def test_a_run_in_a_read_only_folder_can_be_looked_at_but_not_resumed(commands, disk):
    run = disk.path / "run"
    assert commands.train(run, small()).wait()[0] == 0
    disk.make_read_only(run)
    code, text = commands.resume(run).wait()
    assert code == 2
    assert text == f"fullstride: cannot write in the run folder {run}: Read-only file system; training needs to\n"
    code, text = commands.start("evaluate", run, "--checkpoint", "last").wait()
    assert code == 0
    assert text.startswith("step 12: ")


def test_a_run_folder_that_cannot_be_made_is_bad_input(commands, disk):
    (disk.path / "shelf").mkdir()
    disk.make_read_only(disk.path / "shelf")
    run = disk.path / "shelf" / "run"
    code, text = commands.train(run, small()).wait()
    assert code == 2
    assert text.startswith(f"fullstride: cannot make the run folder {run}: Read-only file system; ")

"""Processes killed while they save, full and read-only disks: the checkpoint before is always there, whole."""

import errno
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from fullstride.train.checkpoints import store as checkpoint
from fullstride.train.checkpoints.store import Snapshot, Store

from ...patience import PATIENCE
from .. import children

MEBI = 1 << 20


def snapshot(step, generation=0, num_bytes=4096):
    """Every part of it says which one it is."""
    value = 1000 * step + generation
    tensors = {"weight": torch.full((num_bytes // 8,), value, dtype=torch.int64)}
    return Snapshot(step, {"model": tensors, "optimizer": tensors}, {"state": {"step": step, "generation": generation}})


def which(found):
    """(step, generation), after a look at all parts."""
    state = found.documents["state"]
    assert found.step == state["step"]
    value = 1000 * state["step"] + state["generation"]
    assert all((found.tensors[part]["weight"] == value).all() for part in ("model", "optimizer"))
    return state["step"], state["generation"]


def newest(folder):
    """(step, generation) of the newest one, which must be found without passing over another."""
    with no_warnings():
        found = Store(folder).newest()
    assert found is not None
    return which(found)


class no_warnings(logging.Handler):
    def __enter__(self):
        checkpoint.logger.addHandler(self)

    def emit(self, record):
        raise AssertionError(record.getMessage())

    def handleError(self, record):
        raise

    def __exit__(self, *_):
        checkpoint.logger.removeHandler(self)


# ---- kills -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_memory(tmp_path):
    """A folder where syncing takes no time; a kill, unlike a power cut, does not care for it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield Path(folder)


class AtEveryLine:
    """Calls `look` after each line of saving that changed something in a folder: what a kill there would leave."""

    def __init__(self, folder, look):
        self._folder, self._look = folder, look
        self._before = None
        self.num_states = 0

    def __enter__(self):
        self._others = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._others)

    def _trace(self, frame, event, argument):
        if not re.search(r"fullstride.train|shutil", frame.f_code.co_filename):  # that removes folders
            return None
        state = sorted((str(path), path.lstat().st_size) for path in self._folder.rglob("*"))
        if state != self._before:
            self._before = state
            self.num_states += 1
            sys.settrace(None)
            self._look()
            sys.settrace(self._trace)
        return self._trace


@pytest.mark.parametrize(("step", "generation"), [(2, 0), (1, 1)], ids=["a new step", "the same step again"])
def test_at_every_line_of_saving_there_is_the_one_before_or_the_new_one(step, generation, in_memory):
    folder = in_memory / "folder"
    store = Store(folder, keep=1)
    store.save(snapshot(1))
    seen = []

    def look():
        seen.append(newest(folder))
        for path in folder.glob("step-*"):  # whole, whatever has that name
            which(store.load(path))
        copy = in_memory / "copy"  # where the next run saves after the kill
        shutil.copytree(folder, copy)
        Store(copy, keep=2).save(snapshot(3))
        assert newest(copy) == (3, 0)
        assert [which(Store(copy).load(copy / name)) for name in sorted(os.listdir(copy))] == [seen[-1], (3, 0)]
        shutil.rmtree(copy)

    with AtEveryLine(folder, look) as lines:
        store.save(snapshot(step, generation))
    first = seen.index((step, generation))
    assert set(seen[:first]) == {(1, 0)}
    assert set(seen[first:]) == {(step, generation)}
    assert lines.num_states > 10


def save_for_ever(folder, ready):
    store = Store(folder, keep=1)
    step = which(store.newest())[0]
    while True:
        step += 1
        for generation in range(2):
            store.save(snapshot(step, generation, num_bytes=MEBI // 4))
            store.save(snapshot(step, generation, num_bytes=MEBI // 4), "best")
        ready.set()


def test_a_kill_at_a_random_time_leaves_a_whole_one(in_memory):
    Store(in_memory).save(snapshot(0))
    last = (0, 0)
    chance = random.Random(0)
    for _ in range(20):
        ready = children.event()
        process = children.start(save_for_ever, in_memory, ready)
        assert ready.wait(PATIENCE)
        deadline = time.monotonic() + 0.02 * chance.random()
        while time.monotonic() < deadline:
            pass
        process.kill()
        process.join()
        found = newest(in_memory)
        assert found > last
        with no_warnings():
            which(Store(in_memory).best())
        last = found


# ---- disks -----------------------------------------------------------------------------------------------------------


def attempt(store, snapshot):
    """The message of the OSError that saving must raise, and its number."""
    with pytest.raises(OSError, match="not saved") as raised:
        store.save(snapshot)
    assert "\n" not in str(raised.value)
    return str(raised.value), raised.value.errno


def save_on_a_small_disk(folder):
    children.mount_small_disk(folder, 8 * MEBI)
    store = Store(folder)
    store.save(snapshot(1, num_bytes=2 * MEBI))
    outcome = attempt(store, snapshot(2, num_bytes=20 * MEBI))
    assert newest(folder) == (1, 0)
    return outcome, os.listdir(folder)


def test_too_little_space_is_told_before_anything_is_written(tmp_path):
    (message, number), files = children.run(save_on_a_small_disk, tmp_path / "disk")
    assert re.fullmatch(
        f"checkpoint of step 2 not saved in {tmp_path / 'disk'}: expected 41.8 MiB of free space, got 3.9. MiB;"
        " free some; those saved before are untouched",
        message,
    )
    assert number == errno.ENOSPC
    assert files == ["step-00000001"]


def fill_the_disk_while_saving(folder):
    """As if others wrote after the space had been found enough."""
    children.mount_small_disk(folder, 8 * MEBI)
    store = Store(folder, keep=1)
    store.save(snapshot(1, num_bytes=MEBI))
    store._check_space = lambda files: None  # type: ignore[method-assign]
    outcomes = []
    for num_bytes in (4 * MEBI, 20 * MEBI):
        for step in (1, 2):
            outcomes.append(attempt(store, snapshot(step, 1, num_bytes)))
            assert newest(folder) == (1, 0)
    files = os.listdir(folder)
    store.save(snapshot(3, num_bytes=MEBI))
    assert newest(folder) == (3, 0)
    return outcomes, files


def test_a_disk_that_fills_up_halfway_costs_no_checkpoint(tmp_path):
    outcomes, files = children.run(fill_the_disk_while_saving, tmp_path / "disk")
    for message, number in outcomes:
        assert message.endswith(": No space left on device; those saved before are untouched")
        assert number == errno.ENOSPC
    assert files == ["step-00000001"]


def save_on_a_read_only_disk(folder):
    children.mount_small_disk(folder, 8 * MEBI)
    store = Store(folder)
    store.save(snapshot(1))
    children.make_read_only(folder)
    outcomes = [attempt(store, snapshot(1)), attempt(store, snapshot(2)), attempt(Store(folder / "new"), snapshot(2))]
    assert newest(folder) == (1, 0)
    return outcomes


def test_a_read_only_disk_is_one_line(tmp_path):
    for message, number in children.run(save_on_a_read_only_disk, tmp_path / "disk"):
        assert "Read-only file system" in message
        assert number == errno.EROFS

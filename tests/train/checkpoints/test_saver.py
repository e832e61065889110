"""Saving in the background: what is saved, when it is done, and where its errors go."""

import os
import sys
import threading
import time

import pytest
import torch

from fullstride.durable import no_poll
from fullstride.train.checkpoints import saver as saver_module
from fullstride.train.checkpoints.saver import Saver
from fullstride.train.checkpoints.store import NonFiniteWeights, Snapshot, Store

from ...patience import PATIENCE
from .. import children


def snapshot(step, **tensors):
    return Snapshot(step, {"model": tensors or {"weight": torch.full((3, 4), float(step))}}, {"state": {"step": step}})


class Gate(Store):
    """A store that starts to save when it is let, and tells what it was given."""

    def __init__(self, folder):
        super().__init__(folder)
        self.open = threading.Event()
        self.saved = []

    def save(self, snapshot, kind="step", poll=no_poll):
        assert self.open.wait(PATIENCE)
        self.saved.append(snapshot)
        return super().save(snapshot, kind, poll)


@pytest.fixture
def gate(tmp_path):
    gate = Gate(tmp_path)
    yield gate
    gate.open.set()  # for the threads of a test that failed


@pytest.mark.parametrize("background", [True, False])
def test_both_kinds_are_saved(background, tmp_path):
    store = Store(tmp_path)
    with Saver(store, background) as saver:
        saver.submit(snapshot(1))
        saver.submit(snapshot(2), "best")
    assert store.newest().step == 1
    assert store.best().step == 2


def test_training_may_go_on_at_once(gate):
    weight, state = torch.ones(3), {"losses": [1.0]}
    with Saver(gate) as saver:
        saver.submit(Snapshot(1, {"model": {"weight": weight}}, {"state": state}))
        weight.zero_()
        state["losses"].append(2.0)
        gate.open.set()
    found = gate.newest()
    assert torch.equal(found.tensors["model"]["weight"], torch.ones(3))
    assert found.documents == {"state": {"losses": [1.0]}}


def test_it_is_busy_while_it_saves(gate):
    with Saver(gate) as saver:
        assert not saver.busy
        saver.submit(snapshot(1))
        assert saver.busy
        gate.open.set()
        saver.wait()
        assert not saver.busy
        assert gate.newest().step == 1


def test_the_next_one_waits_for_the_one_before(gate):
    with Saver(gate) as saver:
        saver.submit(snapshot(1))
        waiting = threading.Thread(target=saver.submit, args=(snapshot(2),))
        waiting.start()
        assert not gate.saved
        gate.open.set()
        waiting.join()
        saver.wait()
    assert [saved.step for saved in gate.saved] == [1, 2]


def test_buffers_are_kept_between_savings_and_given_back_at_the_end(gate):
    gate.open.set()
    saver = Saver(gate)
    for step in (1, 2):
        saver.submit(snapshot(step, a=torch.ones(5), b=torch.ones(2, 3 + step), c=torch.ones(2).bfloat16()))
    saver.close()
    (a, b, c), (other_a, other_b, other_c) = (saved.tensors["model"].values() for saved in gate.saved)
    assert (a.data_ptr(), c.data_ptr()) == (other_a.data_ptr(), other_c.data_ptr())
    assert (b.shape, other_b.shape) == ((2, 4), (2, 5))
    assert not saver._buffers


def test_views_and_parameters_are_copied_whole(gate):
    gate.open.set()
    parameter = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    with Saver(gate) as saver:
        saver.submit(snapshot(1, p=parameter, t=parameter.t(), e=torch.empty(0, 2), s=torch.tensor(4)))
    found = gate.newest().tensors["model"]
    assert torch.equal(found["p"], parameter)
    assert torch.equal(found["t"], parameter.t())
    assert found["e"].shape == (0, 2)
    assert found["s"] == 4


def test_tied_tensors_are_copied_once_and_stay_tied(gate):
    gate.open.set()
    weight = torch.ones(3)
    with Saver(gate) as saver:
        saver.submit(Snapshot(1, {"model": {"a": weight, "b": weight}, "other": {"c": weight}}, {}))
    copies = gate.saved[0].tensors
    assert copies["model"]["a"] is copies["model"]["b"] is copies["other"]["c"]
    assert copies["model"]["a"].data_ptr() != weight.data_ptr()
    found = gate.newest().tensors
    assert found["model"]["a"] is found["model"]["b"]


@pytest.mark.parametrize(
    "then",
    [lambda saver: saver.submit(snapshot(3)), lambda saver: saver.wait(), lambda saver: saver.close()],
    ids=["submit", "wait", "close"],
)
def test_an_error_is_raised_once_by_what_comes_next(then, tmp_path):
    store = Store(tmp_path)
    saver = Saver(store)
    saver.submit(snapshot(1))
    saver.submit(snapshot(2, weight=torch.tensor([float("nan")])))
    with pytest.raises(NonFiniteWeights, match="step 2"):
        then(saver)
    saver.submit(snapshot(4))
    saver.close()
    assert store.steps() == [1, 4]


def test_an_error_of_the_disk_comes_as_it_is(tmp_path):
    (tmp_path / "file").write_text("")
    saver = Saver(Store(tmp_path / "file"))
    saver.submit(snapshot(1))
    with pytest.raises(FileExistsError, match="step 1 not saved"):
        saver.close()


def niceness(thread_id=0):
    return os.getpriority(os.PRIO_PROCESS, thread_id)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_only_the_thread_that_saves_has_the_lowest_priority(gate):
    before = niceness()
    with Saver(gate) as saver:
        saver.submit(snapshot(1))
        assert niceness(saver._thread.native_id) == 19
        assert niceness() == before
        gate.open.set()


class Endless(Store):
    """Its first saving never ends but by being given up, or by a priority that was raised."""

    def __init__(self, folder):
        super().__init__(folder)
        self.num_savings = 0
        self.starves = threading.Event()

    def save(self, snapshot, kind="step", poll=no_poll):
        self.num_savings += 1
        is_first = self.num_savings == 1
        while is_first and niceness(threading.get_native_id()) != 19:
            time.sleep(0)
        self.starves.set()
        while is_first and niceness(threading.get_native_id()) == 19:
            poll()
            time.sleep(0)  # to others who want the interpreter
        return super().save(snapshot, kind, poll)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
@pytest.mark.parametrize("then", [Saver.wait, Saver.close, lambda saver: saver.submit(snapshot(2))])
def test_a_starved_saving_is_taken_over_by_whoever_waits(then, tmp_path, monkeypatch):
    monkeypatch.setattr(saver_module, "_PATIENCE", 0.01)
    store = Endless(tmp_path)
    saver = Saver(store)
    saver.submit(snapshot(1))
    assert store.starves.wait(PATIENCE)
    monkeypatch.setattr(saver_module, "_set_niceness", lambda thread, value: False)
    then(saver)
    saver.close()
    assert 1 in store.steps()
    assert store.num_savings == len(store.steps()) + 1


def wait_for_a_starved_saving(folder):
    store = Endless(folder)
    saver = Saver(store)
    saver.submit(snapshot(1))
    assert store.starves.wait(PATIENCE)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 1)
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    except PermissionError:
        pytest.skip("only some may raise a priority")
    saver.wait()
    return store.num_savings


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_its_priority_is_raised_where_that_is_allowed(tmp_path):
    assert children.run(wait_for_a_starved_saving, tmp_path) == 1


def test_without_a_background_it_is_saved_at_once_and_without_a_copy(gate):
    gate.open.set()
    saver = Saver(gate, background=False)
    given = snapshot(1)
    saver.submit(given)
    assert gate.saved == [given]
    assert not saver.busy


def submit_and_end(folder):
    Saver(Store(folder)).submit(snapshot(1, weight=torch.ones(1 << 20)))


def test_a_process_that_ends_without_closing_ends_with_the_saving_done(tmp_path):
    process = children.start(submit_and_end, tmp_path)
    process.join()
    assert process.exitcode == 0
    assert Store(tmp_path).newest().step == 1


def threads_of_a_saving(folder):
    """(before, while its files are written) of the process's threads, torch having used all of its own."""
    num_threads = lambda: len(os.listdir("/proc/self/task"))  # noqa: E731
    torch.set_num_threads(3)
    weight = torch.ones(1 << 20)
    Saver(Store(folder))._copy({"model": {"weight": weight}})
    before = num_threads()
    counts = []
    store = Store(folder)
    store._check_space = lambda files: counts.append(num_threads())  # type: ignore[method-assign]
    with Saver(store) as saver:
        saver.submit(snapshot(1, weight=weight, half=weight.bfloat16()))
    return before, counts[0]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the threads of a process")
def test_saving_starts_no_further_threads(tmp_path):
    before, during = children.run(threads_of_a_saving, tmp_path)
    assert during == before + 1

"""With real processes, really killed."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest
import torch

from fullstride.data.loader import Loader, WorkerDied
from fullstride.data.order import Order
from fullstride.data.workers import RaisedInWorker

from ..patience import PATIENCE

ORDER = Order(num_samples=1000, batch=1, shuffle=False)  # micro-batch k is sample k


class Samples:
    """Sample `special` is made by calling act(), in a worker only."""

    def __init__(self, special=-1, act=None):
        self.special, self.act, self.parent = special, act, os.getpid()

    def __len__(self):
        return 1000

    def batch(self, indices, epochs):
        if indices[0] == self.special and os.getpid() != self.parent:
            self.act()
        return (torch.from_numpy(indices.copy()),)


class Unsendable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def corrupt():
    raise ValueError("digits.bin: label 12 of record 5 (byte 13): expected one from 0 to 9")


def unsendable():
    raise Unsendable("one", "another")


@pytest.fixture
def load():
    made = []

    def make(dataset, workers, **options):
        made.append(Loader(dataset, ORDER, workers=workers, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def take(loader, num):
    return [int(loader.next()[0]) for _ in range(num)]


def until(condition):
    """Polls for it."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_killed_worker_is_named_with_its_signal_after_what_was_made_before(load):
    loader = load(Samples(5, kill_myself), 2)
    assert take(loader, 5) == [0, 1, 2, 3, 4]
    pids = loader._workers.pids
    with pytest.raises(WorkerDied, match=r"^data worker \d+ was killed by SIGKILL before micro-batch 5 ") as caught:
        loader.next()
    assert int(str(caught.value).split()[2]) in pids
    assert "\n" not in str(caught.value)
    assert loader.position == 5
    assert all(is_gone(pid) for pid in pids)


def test_worker_killed_from_outside_while_nobody_waits_is_found_out(load):
    loader = load(Samples(), 2)
    take(loader, 3)
    pids = loader._workers.pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(is_gone(pid) for pid in pids))  # a handler of SIGCHLD would have raised in here
    with pytest.raises(WorkerDied, match="SIGKILL"):
        take(loader, 1000)
    assert 3 <= loader.position <= 3 + 2 * 2  # what they had made ahead


def test_worker_that_leaves_is_named_with_its_exit_code(load):
    with pytest.raises(WorkerDied, match=r"^data worker \d+ ended with exit code 7 before micro-batch 2 was made$"):
        take(load(Samples(2, lambda: os._exit(7)), 1), 5)


def test_error_in_a_worker_arrives_as_it_was_raised(load):
    loader = load(Samples(4, corrupt), 2)
    assert take(loader, 4) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"^digits.bin: label 12 of record 5 .* from 0 to 9$") as caught:
        loader.next()
    assert isinstance(caught.value.__cause__, RaisedInWorker)
    assert "in corrupt" in str(caught.value.__cause__)


def test_loader_goes_on_at_the_same_position_after_an_error(load):
    loader = load(Samples(4, corrupt), 2)
    with pytest.raises(ValueError, match=r"digits\.bin"):
        take(loader, 5)
    assert loader.position == 4
    assert take(loader, 3) == [4, 5, 6]  # 4 comes from this process now


def test_error_that_cannot_be_sent_is_told(load):
    with pytest.raises(RuntimeError, match=r"^Unsendable: one and another$"):
        take(load(Samples(1, unsendable), 1), 2)


def test_closing_ends_the_workers(load):
    loader = load(Samples(), 3)
    take(loader, 2)
    pids = loader._workers.pids
    assert not any(is_gone(pid) for pid in pids)
    loader.close()
    loader.close()
    assert all(is_gone(pid) for pid in pids)
    assert not multiprocessing.active_children()


def test_forgotten_loader_ends_its_workers():
    loader = Loader(Samples(), ORDER, workers=1)
    take(loader, 2)
    pids = loader._workers.pids
    del loader
    gc.collect()
    assert all(is_gone(pid) for pid in pids)


def test_closing_ends_a_worker_that_is_stuck(load):
    loader = load(Samples(1, signal.pause), 1)
    take(loader, 1)
    pid = loader._workers.pids[0]
    loader.close()
    assert is_gone(pid)


def test_workers_use_one_thread_after_this_process_used_several(load, num_threads):
    class Threads(Samples):
        def batch(self, indices, epochs):
            large = torch.ones(1 << 21).sum()  # in parallel, where threads are allowed
            return torch.tensor([torch.get_num_threads()]), large, torch.tensor(os.getpid() != self.parent)

    num_threads(2)
    torch.ones(1 << 21).sum()  # OpenMP's threads are there now
    loader = load(Threads(), 2)
    found = [loader.next() for _ in range(5)]
    assert [(int(threads), bool(is_worker)) for threads, _, is_worker in found] == [(2, False)] + 4 * [(1, True)]
    assert all(large == 1 << 21 for _, large, _ in found)


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


def train(pipe, num_workers):
    """A training in a process group of its own, that notes signals and goes on for as long as it is asked to."""
    os.setsid()
    seen, me = [], os.getpid()

    def note(number, _):
        if os.getpid() != me:
            os._exit(1)  # the handler was inherited, and runs in a worker
        seen.append(number)

    for number in SIGNALS:
        signal.signal(number, note)
    loader = Loader(Samples(), ORDER, workers=num_workers)
    take(loader, 3)
    pipe.send(loader._workers.pids)
    while pipe.recv():
        pipe.send((take(loader, 50), list(seen)))
    loader.close()
    pipe.send("closed")


@pytest.fixture
def training():
    """(process, pipe, pids of its workers)"""
    context = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe()
    process = context.Process(target=train, args=(theirs, 3))
    process.start()
    theirs.close()
    yield process, pipe, pipe.recv()
    process.kill()
    process.join()
    process.close()
    pipe.close()


def test_signals_to_the_process_group_leave_the_workers_to_the_parent(training):
    process, pipe, pids = training
    for number in SIGNALS:
        os.killpg(process.pid, number)
    pipe.send(True)
    found, _ = pipe.recv()
    assert found == list(range(3, 53))
    pipe.send(True)
    _, seen = pipe.recv()
    assert sorted(seen) == sorted(SIGNALS)
    assert not any(is_gone(pid) for pid in pids)
    pipe.send(False)
    assert pipe.recv() == "closed"
    assert all(is_gone(pid) for pid in pids)


def test_workers_end_when_their_parent_is_killed(training):
    process, _, pids = training
    process.kill()
    until(lambda: all(is_gone(pid) for pid in pids))


def test_process_that_never_closes_its_loader_ends_nevertheless():
    code = """
        import sys, torch
        from fullstride.data.loader import Loader
        from fullstride.data.order import Order
        from fullstride.data.synthetic import SyntheticDataset
        loader = Loader(SyntheticDataset(100), Order(100, 4), workers=2)
        loader.next(), loader.next()
        print(*loader._workers.pids)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    until(lambda: all(is_gone(pid) for pid in pids))


def test_empty_and_odd_tensors_arrive_as_they_were_sent(load):
    class Odd(Samples):
        def batch(self, indices, epochs):
            made = (np.zeros((0, 3)), np.array(7.5), np.array([True, False, True]), np.arange(6).reshape(2, 3).T)
            return tuple(torch.from_numpy(array) for array in made)

    loader = load(Odd(), 1)
    first, second = loader.next(), loader.next()
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(first, second, strict=True))

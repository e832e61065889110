"""What a run that ended before its time leaves behind for `fullstride runs`: real runs, stopped and failed."""

import signal

import pytest

from fullstride.report import overview
from fullstride.train.errors import Interrupted
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

from .runs import Signal, small, train


class Look(Hook):
    def on_step(self, trainer, loss):
        (self.found,), _ = overview.look([trainer.folder.path])


class Fail(Hook):
    def on_step(self, trainer, loss):
        raise RuntimeError("no more of this\nwith details")


def state(folder):
    (found,), _ = overview.look([folder])
    return found.state, found.why


def test_a_run_is_running_and_then_finished(tmp_path):
    look = Look()
    train(tmp_path / "run", small(), [look])
    assert look.found.state == "running"
    assert state(tmp_path / "run") == ("finished", "")


def test_a_run_that_a_signal_stopped_is_interrupted_until_it_went_on(tmp_path):
    with pytest.raises(Interrupted):
        train(tmp_path / "run", small(), [Signal(signal.SIGTERM, step=3, micro=1)])
    assert state(tmp_path / "run") == ("interrupted", "stopped by SIGTERM")
    Trainer.resume(tmp_path / "run").fit()
    assert state(tmp_path / "run") == ("finished", "")


def test_a_run_that_an_error_ended_has_failed_and_says_why_in_one_line(tmp_path):
    with pytest.raises(RuntimeError):
        train(tmp_path / "run", small(), [Fail()])
    assert state(tmp_path / "run") == ("failed", "no more of this")

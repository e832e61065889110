"""Hooks that stop a run, that fail, and that stand for what fails."""

import os
import signal

import pytest

from fullstride.run_folder.metrics import read
from fullstride.train.checkpoints.store import Store
from fullstride.train.errors import Interrupted
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

from .runs import Signal, assert_same_run, evaluations, losses, small, train


class Stop(Hook):
    def __init__(self):
        self.seen = []

    def on_start(self, trainer):
        self.seen.append("start")

    def on_step(self, trainer, loss):
        self.seen.append(trainer.state.step)
        if trainer.state.step == 3:
            trainer.stop("seen enough")

    def on_evaluate(self, trainer, row):
        self.seen.append(("evaluate", row["step"]))

    def on_end(self, trainer):
        self.seen.append("end")


def test_hooks_are_called_and_may_stop_the_run(tmp_path):
    hook = Stop()
    result = train(tmp_path / "run", small(), [hook])
    assert result.stopped == "seen enough"
    assert hook.seen == ["start", 1, 2, 3, ("evaluate", 3), "end"]
    assert Store(tmp_path / "run" / "checkpoints").steps() == [3]


def test_a_run_that_is_stopped_between_two_rows_writes_a_last_one(tmp_path):
    train(tmp_path / "run", small(logging={"every": 2}), [Stop()])
    assert [step for step, _ in losses(tmp_path / "run")] == [2, 3]


def test_the_last_row_is_written_after_an_interruption_of_the_last_evaluation(tmp_path):
    config = small(logging={"every": 2})
    train(tmp_path / "whole", config, [Stop()])
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", config, [Stop(), Signal(signal.SIGTERM, step=3, evaluating=True)])
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    row = next(row for row in read(tmp_path / "parts") if row["kind"] == "train" and row["step"] == 3)
    assert row["step_ms"] is row["per_second"] is row["gflops"] is row["share_of_peak"] is None


class StopWhenSaved(Hook):
    def on_checkpoint(self, trainer, folder):
        trainer.stop("saved")


def test_a_run_that_is_stopped_while_it_is_saved_ends_as_others_do(tmp_path):
    result = train(tmp_path / "run", small(evaluation={"every": 0}), [StopWhenSaved()])
    assert (result.steps, result.stopped) == (5, "saved")
    assert [row["step"] for row in evaluations(tmp_path / "run")] == [5]
    assert Trainer.resume(tmp_path / "run").fit().steps == 5


def test_a_trainer_can_train_again_from_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(small())
    first, second = trainer.fit(), trainer.fit()
    assert first.run != second.run
    assert_same_run(first.run, second.run)


class FailWhenSaved(Hook):
    def on_checkpoint(self, trainer, folder):
        if trainer.state.step == 4:  # where the best weights are saved
            raise RuntimeError("out of luck")


def test_an_error_of_a_hook_loses_no_evaluation(tmp_path):
    train(tmp_path / "whole", small())
    with pytest.raises(RuntimeError, match="out of luck"):
        train(tmp_path / "parts", small(), [FailWhenSaved()])
    assert Store(tmp_path / "parts" / "checkpoints").newest().step == 4
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


class AlwaysFailWhenSaved(Hook):
    def on_checkpoint(self, trainer, folder):
        raise ConnectionError("nobody there")


def test_a_run_stopped_by_a_signal_says_so_even_if_a_hook_fails_on_its_last_checkpoint(tmp_path):
    with pytest.raises(Interrupted):
        train(tmp_path / "run", small(), [AlwaysFailWhenSaved(), Signal(signal.SIGTERM, step=2, micro=0)])
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "saved at step 2" in log
    assert "could not save" not in log


class Fail(Hook):
    def on_start(self, trainer):
        loss = trainer.task.loss

        def fail(model, batch):
            if (trainer.state.step, trainer.state.micro) == (6, 1):
                raise RuntimeError("out of luck")
            return loss(model, batch)

        trainer.task.loss = fail


def test_an_error_in_the_middle_of_a_step_saves_the_beginning_of_that_step(tmp_path):
    train(tmp_path / "whole", small())
    with pytest.raises(RuntimeError, match="out of luck"):
        train(tmp_path / "parts", small(), [Fail()])
    newest = Store(tmp_path / "parts" / "checkpoints").newest()
    assert (newest.step, newest.documents["state"]["micro"]) == (6, 0)
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


class Corrupt(Hook):
    """A sample cannot be read, in the middle of step 6."""

    def on_start(self, trainer):
        load = trainer.loader.next

        def fail():
            if trainer.loader.position == 13:
                raise ValueError("digits.bin: half a record")
            return load()

        trainer.loader.next = fail


def test_a_sample_that_cannot_be_read_leaves_the_micro_batches_before_it(tmp_path):
    train(tmp_path / "whole", small())
    with pytest.raises(ValueError, match="half a record"):
        train(tmp_path / "parts", small(), [Corrupt()])
    newest = Store(tmp_path / "parts" / "checkpoints").newest()
    assert (newest.step, newest.documents["state"]["micro"]) == (6, 1)
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


class Offline(Hook):
    """Fails as a hook does that tells others, or as data on a network does."""

    def on_step(self, trainer, loss):
        if trainer.state.step == 3:
            raise ConnectionError("nobody there")


def test_an_error_of_the_system_elsewhere_does_not_keep_a_run_from_being_saved(tmp_path):
    with pytest.raises(ConnectionError, match="nobody there"):
        train(tmp_path / "run", small(), [Offline()])
    assert Store(tmp_path / "run" / "checkpoints").newest().step == 3


class Exit(Hook):
    def on_step(self, trainer, loss):
        if trainer.state.step == 3:
            raise SystemExit(7)


def test_a_hook_may_exit_and_the_run_is_saved(tmp_path):
    with pytest.raises(SystemExit):
        train(tmp_path / "run", small(), [Exit()])
    assert Store(tmp_path / "run" / "checkpoints").newest().step == 3


class LoseRow(Hook):
    """A row of metrics cannot be written, as on a disk that is full for a moment."""

    def __init__(self, kind, step):
        self.lost = kind, step

    def on_start(self, trainer):
        write = trainer.recorder.metrics.write

        def write_others(kind, row):
            if (kind, row["step"]) == self.lost:
                raise OSError("no room")
            write(kind, row)

        trainer.recorder.metrics.write = write_others


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_what_is_saved_after_an_error_lacks_no_row_of_metrics(tmp_path, kind):
    train(tmp_path / "whole", small())
    with pytest.raises(OSError, match="no room"):
        train(tmp_path / "parts", small(), [LoseRow(kind, 8)])
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


class FullForAMoment(Hook):
    """Saving in the background fails once, after which SIGTERM comes."""

    def on_start(self, trainer):
        save, trainer.store.save = trainer.store.save, self.refuse
        self.undo = lambda: setattr(trainer.store, "save", save)

    def refuse(self, *_):
        self.undo()
        raise OSError("no room")

    def on_checkpoint(self, trainer, folder):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_saving_that_failed_does_not_keep_the_next_from_being_tried(tmp_path):
    config = small(checkpoints={"background": True}, evaluation={"every": 0})
    with pytest.raises(Interrupted):
        train(tmp_path / "run", config, [FullForAMoment()])
    assert Store(tmp_path / "run" / "checkpoints").newest().step == 5


class Unplug(Hook):
    """Ends the run without a checkpoint, as a full disk does."""

    def on_step(self, trainer, loss):
        if trainer.state.step == 3:
            trainer.store.save = self.refuse
            raise OSError("no disk")

    def refuse(self, *_):
        raise OSError("no disk")


def test_an_attempt_that_left_no_checkpoint_counts(tmp_path):
    with pytest.raises(OSError, match="no disk"):
        train(tmp_path / "run", small(), [Unplug()])
    with pytest.raises(OSError, match="no disk"):
        Trainer.resume(tmp_path / "run", [Unplug()]).fit()
    Trainer.resume(tmp_path / "run").fit()
    assert {row["attempt"] for row in read(tmp_path / "run") if row["kind"] == "event"} == {1, 2, 3}
    assert {row["attempt"] for row in read(tmp_path / "run") if row["kind"] == "train"} == {3}

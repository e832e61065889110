"""The loop, on a network that takes milliseconds. What kills processes is in tests/faults."""

import json
import math
import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch

import fullstride
from fullstride.recipes.mlp import MlpConfig
from fullstride.train import config_files, evaluation, state_files
from fullstride.train.checkpoint import Store
from fullstride.train.errors import Diverged, Interrupted
from fullstride.train.hooks import Hook
from fullstride.train.metrics import read
from fullstride.train.trainer import Trainer

from .runs import assert_same_run, evaluations, losses, small


class Signal(Hook):
    """Sends a signal to this process after a micro-batch, in a step or in an evaluation."""

    def __init__(self, number, step, micro=None, evaluating=False):
        self.number, self.place, self.evaluating = number, (step, micro), evaluating

    def on_start(self, trainer):
        task = trainer.task
        loss, score = task.loss, task.score

        def loss_and_signal(model, batch):
            if (trainer.state.step, trainer.state.micro) == self.place:
                self.send()
            return loss(model, batch)

        def score_and_signal(model, batch):
            if self.evaluating and trainer.state.step == self.place[0]:
                self.send()
            return score(model, batch)

        task.loss, task.score = loss_and_signal, score_and_signal

    def send(self):
        os.kill(os.getpid(), self.number)


def train(folder, config, hooks=()):
    return Trainer(config, folder, hooks).fit()


def test_a_run_leaves_everything_in_its_folder(tmp_path):
    result = train(tmp_path / "run", small())
    assert result.steps == 12
    assert config_files.read(tmp_path / "run" / "config.yaml") == small()
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(1, 13))
    assert [row["step"] for row in evaluations(tmp_path / "run")] == [4, 8, 12]
    assert json.loads((tmp_path / "run" / "machine.json").read_text())["environment"]["threads"] == 1
    assert Store(tmp_path / "run" / "checkpoints").steps() == [10, 12]
    assert "evaluated" in (tmp_path / "run" / "log.txt").read_text()


def test_a_row_tells_where_the_time_went_and_how_each_layer_learns(tmp_path):
    train(tmp_path / "run", small())
    rows = [row for row in read(tmp_path / "run") if row["kind"] == "train"]
    assert {"data", "forward", "backward", "optimizer", "other"} <= rows[-1]["time"].keys()
    assert all(row["time"]["forward"] > 0 for row in rows)
    assert rows[-1]["grad_norms"].keys() == {"1", "4", "7"}
    squares = sum(norm**2 for norm in rows[-1]["grad_norms"].values())
    assert squares**0.5 == pytest.approx(rows[-1]["grad_norm"], rel=1e-5)
    assert rows[-1]["joules"] is None or rows[-1]["joules"] > 0
    assert rows[-1]["gflops"] > 0
    assert rows[-1]["resident_mb"] > 10


def test_it_learns(tmp_path):
    train(tmp_path / "run", small(steps=60, model={"dropout": 0.0}))
    found = [loss for _, loss in losses(tmp_path / "run")]
    assert sum(found[-5:]) < 0.7 * sum(found[:5])


def test_the_same_config_gives_the_same_bits(tmp_path):
    train(tmp_path / "a", small())
    train(tmp_path / "b", small())
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_another_seed_gives_other_losses(tmp_path):
    train(tmp_path / "a", small())
    train(tmp_path / "b", small(seed=1))
    assert losses(tmp_path / "a") != losses(tmp_path / "b")


VARIANTS = {
    "adamw": {},
    "lamb with lookahead": {"optimizer": {"name": "lamb", "lookahead": True, "lookahead_k": 3}},
    "sgd in 8 bits": {"optimizer": {"name": "sgd", "state_precision": "8bit"}},
    "bf16": {"precision": "bf16", "optimizer": {"state_precision": "bf16"}},
    "fp16": {"precision": "fp16"},
    "freezing": {"freeze": {"enabled": True, "threshold": 10.0, "patience": 2}},
    "a step schedule": {"schedule": {"name": "step", "every": 3}},
    "saving in the background": {"checkpoints": {"background": True}},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_resuming_twice_is_bitwise_the_run_that_was_not_interrupted(tmp_path, changes):
    config = small(**changes)
    train(tmp_path / "whole", config)
    with pytest.raises(Interrupted) as caught:  # in the middle of an accumulation
        train(tmp_path / "parts", config, [Signal(signal.SIGTERM, step=3, micro=0)])
    assert caught.value.code == 143
    newest = Store(tmp_path / "parts" / "checkpoints").newest()
    assert (newest.step, newest.documents["state"]["micro"]) == (3, 1)
    with pytest.raises(Interrupted) as caught:  # after the end of an epoch, which is 50 samples
        Trainer.resume(tmp_path / "parts", [Signal(signal.SIGINT, step=6, micro=1)]).fit()
    assert caught.value.code == 130
    assert Trainer.resume(tmp_path / "parts").fit().steps == 12
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_precision_that_was_measured_stays_that_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "bf16")  # what measuring came to
    train(tmp_path / "whole", small(precision="auto"))
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", small(precision="auto"), [Signal(signal.SIGTERM, step=3, micro=0)])
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "fp32")
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("before", ["bf16", "fp16"])
def test_a_run_may_go_on_in_another_precision_from_the_start_of_a_step(tmp_path, before):
    with pytest.raises(Interrupted):
        train(tmp_path / "run", small(precision=before), [Signal(signal.SIGTERM, step=3, micro=0)])
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace(f"precision: {before}", "precision: fp32", 1))
    Trainer.resume(tmp_path / "run").fit()
    assert f"precision was {before} and is fp32" in (tmp_path / "run" / "log.txt").read_text()
    train(tmp_path / "other", small(precision=before))
    for (step, loss), (_, other) in zip(losses(tmp_path / "run"), losses(tmp_path / "other"), strict=True):
        assert loss == pytest.approx(other, rel=0.02), step


def test_the_number_of_workers_changes_nothing(tmp_path):
    train(tmp_path / "none", small())
    with pytest.raises(Interrupted):
        train(tmp_path / "two", small(data={"workers": 2}), [Signal(signal.SIGTERM, step=5, micro=1)])
    Trainer.resume(tmp_path / "two").fit()
    assert_same_run(tmp_path / "none", tmp_path / "two")


def test_sigterm_is_seen_in_an_evaluation_which_is_repeated(tmp_path):
    train(tmp_path / "whole", small())
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", small(), [Signal(signal.SIGTERM, step=8, evaluating=True)])
    assert Store(tmp_path / "parts" / "checkpoints").newest().documents["state"]["evaluated"] == 4
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_sigusr1_saves_and_goes_on(tmp_path):
    config = small(checkpoints={"every": 0, "keep": 9})
    result = train(tmp_path / "run", config, [Signal(signal.SIGUSR1, step=2, micro=0)])
    assert result.steps == 12
    assert Store(tmp_path / "run" / "checkpoints").steps() == [2, 12]


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    train(tmp_path / "run", small())
    before = losses(tmp_path / "run"), Store(tmp_path / "run" / "checkpoints").steps()
    assert Trainer.resume(tmp_path / "run").fit().steps == 12
    assert (losses(tmp_path / "run"), Store(tmp_path / "run" / "checkpoints").steps()) == before


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    train(tmp_path / "whole", small())
    fullstride.train.run_folder.RunFolder.create(tmp_path / "parts", config_files.to_yaml(small())).close()
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_best_weights_are_kept(tmp_path):
    result = train(tmp_path / "run", small())
    best = min(evaluations(tmp_path / "run"), key=lambda row: row["loss"])
    assert result.best["step"] == best["step"]
    scores = evaluation.evaluate(tmp_path / "run", "best")
    assert scores["step"] == best["step"]
    assert scores["loss"] == pytest.approx(best["loss"], rel=1e-6)
    assert evaluation.evaluate(tmp_path / "run", "12")["step"] == 12
    with pytest.raises(ValueError, match="has no checkpoint of step 3 that is whole; there are those of: 10, 12"):
        evaluation.evaluate(tmp_path / "run", "3")


def test_early_stopping_ends_the_run_and_is_not_undone_by_resuming(tmp_path):
    stops = {"evaluation": {"every": 1, "patience": 2}, "optimizer": {"lr": 1.0}, "schedule": {"name": "constant"}}
    config = small(steps=200, **stops)
    result = train(tmp_path / "run", config)
    assert result.steps < 200
    assert result.stopped == "loss was not better in 2 evaluations"
    assert Trainer.resume(tmp_path / "run").fit().steps == result.steps


class Poison(Hook):
    """Batches of NaN from a step on, for so many steps."""

    def __init__(self, first, count):
        self.steps = range(first, first + count)

    def on_start(self, trainer):
        loss = trainer.task.loss

        def poisoned(model, batch):
            spoilt = batch[0] * float("nan") if trainer.state.step in self.steps else batch[0]
            return loss(model, (spoilt, batch[1]))

        trainer.task.loss = poisoned


def test_a_step_with_a_nan_is_skipped_and_counted(tmp_path):
    train(tmp_path / "run", small(), [Poison(4, 2)])
    rows = [row for row in read(tmp_path / "run") if row["kind"] == "train"]
    assert [row["skipped"] for row in rows] == [0] * 4 + [1, 2] + [2] * 6
    assert math.isnan(rows[4]["loss"])
    assert rows[-1]["loss"] > 0


def test_too_many_nans_in_a_row_end_the_run_and_leave_good_weights(tmp_path):
    with pytest.raises(Diverged, match="3 steps in a row had a gradient that is not finite") as caught:
        train(tmp_path / "run", small(max_nonfinite=3), [Poison(6, 99)])
    assert caught.value.code == 3
    newest = Store(tmp_path / "run" / "checkpoints").newest()
    assert newest.step == 5
    assert all(tensor.isfinite().all() for tensor in newest.tensors["model"].values())


class Spoil(Hook):
    def on_step(self, trainer, loss):
        if trainer.state.step == 7:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(float("inf"))


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    with pytest.raises(Diverged):
        train(tmp_path / "run", small(max_nonfinite=99, evaluation={"every": 0}), [Spoil()])
    assert Store(tmp_path / "run" / "checkpoints").newest().step == 5


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


def test_what_would_change_the_bits_is_said(tmp_path, caplog):
    train(tmp_path / "run", small(steps=3))
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("threads: 1", "threads: 2"))
    Trainer.resume(tmp_path / "run").fit()
    assert "not bit for bit the run as it was: threads was 1 and is 2" in (tmp_path / "run" / "log.txt").read_text()


def test_a_config_from_an_older_version_takes_todays_defaults_and_says_so(tmp_path, caplog):
    train(tmp_path / "run", small(steps=3))
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("max_nonfinite: 10\n", ""))
    assert Trainer.resume(tmp_path / "run").config == small(steps=3)
    assert "config.yaml is older than the field max_nonfinite, which takes its default" in caplog.text


def test_a_config_from_a_newer_version_is_refused(tmp_path):
    train(tmp_path / "run", small(steps=3))
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text() + "teleport: true\n")
    with pytest.raises(ValueError, match=r"config\.yaml: unknown field 'teleport'"):
        Trainer.resume(tmp_path / "run")


@dataclass(frozen=True, kw_only=True)
class MyConfig(MlpConfig):
    temperature: float = 1.0


def test_a_recipe_of_ones_own_can_be_resumed(tmp_path):
    mine = MyConfig(**vars(small(recipe="mine")), temperature=2.0)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", mine, [Signal(signal.SIGTERM, step=3, micro=0)])
    with pytest.raises(ValueError, match="unknown recipe 'mine'"):
        Trainer.resume(tmp_path / "run")
    trainer = Trainer.resume(tmp_path / "run", base=mine.replace(temperature=1.0))
    assert trainer.config == mine
    assert trainer.fit().steps == 12


def test_data_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = small(steps=2, data={"path": "digits"})  # synthetic data does not look
    train("run", config)
    monkeypatch.chdir("/")
    assert vars(Trainer.resume(tmp_path / "run").config)["data"].path == str(tmp_path / "digits")


def test_a_config_made_in_python_is_as_strict_as_a_file(tmp_path):
    config = replace(small(), data=replace(small().data, path=tmp_path))
    assert vars(Trainer(config).config)["data"].path == str(tmp_path)
    with pytest.raises(ValueError, match=r"steps: expected a whole number, got 3\.0"):
        Trainer(replace(small(), steps=3.0))


@pytest.mark.parametrize("config", ["mlp", small])
def test_something_else_than_a_config_is_refused(config):
    with pytest.raises(TypeError, match=r"config: expected what a recipe returns, such as fullstride\.recipes\.mlp"):
        Trainer(config)


def test_a_class_in_the_place_of_a_hook_is_refused():
    with pytest.raises(TypeError, match=r"hooks: expected objects of subclasses of fullstride.Hook, got <class"):
        Trainer(small(), hooks=[Signal])  # type: ignore[list-item]


def test_the_log_begins_with_what_is_trained_and_where(tmp_path):
    train(tmp_path / "run", small(steps=2))
    count = sum(t.numel() for t in Store(tmp_path / "run" / "checkpoints").newest().tensors["model"].values())
    line = f"mlp: {count:,} parameters, steps 1 to 2 of 2 x 8 samples; everything goes to {tmp_path / 'run'}"
    assert line in (tmp_path / "run" / "log.txt").read_text()


def test_a_metric_that_the_task_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"evaluation\.metric: expected one of loss, accuracy, got beauty"):
        train(tmp_path / "run", small(evaluation={"metric": "beauty"}))
    assert not (tmp_path / "run").exists()


def test_the_gradients_in_a_checkpoint_are_those_of_the_micro_batches_done(tmp_path):
    with pytest.raises(Interrupted):
        train(tmp_path / "run", small(), [Signal(signal.SIGTERM, step=0, micro=0)])
    snapshot = Store(tmp_path / "run" / "checkpoints").newest()
    assert snapshot.tensors["gradients"].keys() == snapshot.tensors["model"].keys()
    assert state_files.unflatten(snapshot.tensors["optimizer"], snapshot.documents["optimizer"])["state"] == {}

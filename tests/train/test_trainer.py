"""The loop, on a network that takes milliseconds. What kills processes is in tests/faults."""

import json
import math

import pytest
import torch

from fullstride.recipes import config_files
from fullstride.run_folder.metrics import read
from fullstride.train import evaluation
from fullstride.train.checkpoints.store import Store
from fullstride.train.errors import Diverged
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

from .runs import Signal, assert_same_run, evaluations, losses, small, train


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


def test_a_run_in_fp16_scales_as_its_config_says(tmp_path):
    config = small(precision="fp16", loss_scale={"start": 8, "growth": 4, "interval": 5})
    trainer = Trainer(config, tmp_path / "run")
    trainer.fit()
    assert (trainer.optimizer.scaler.scale, trainer.optimizer.scaler.good_steps) == (128.0, 2)  # of 12 steps


def test_another_seed_gives_other_losses(tmp_path):
    train(tmp_path / "a", small())
    train(tmp_path / "b", small(seed=1))
    assert losses(tmp_path / "a") != losses(tmp_path / "b")


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    train(tmp_path / "run", small())
    before = losses(tmp_path / "run"), Store(tmp_path / "run" / "checkpoints").steps()
    assert Trainer.resume(tmp_path / "run").fit().steps == 12
    assert (losses(tmp_path / "run"), Store(tmp_path / "run" / "checkpoints").steps()) == before


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


@pytest.mark.parametrize("clip", [1.0, None])
def test_a_step_with_a_nan_is_skipped_and_counted(tmp_path, clip):
    train(tmp_path / "run", small(clip=clip), [Poison(4, 2)])
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


def test_the_config_in_the_folder_says_what_auto_came_to(tmp_path):
    train(tmp_path / "run", small(precision="auto", steps=2))
    resolved = config_files.read(tmp_path / "run" / "config.yaml")
    assert resolved.precision in ("fp32", "bf16")
    assert resolved == small(precision=resolved.precision, steps=2)


def test_a_run_of_epochs_has_the_steps_that_end_them(tmp_path):
    epochs = {"every": "1 epoch"}  # 50 samples, 16 a step: 3.125 steps
    config = small(epochs=3, evaluation=epochs, checkpoints={**epochs, "keep": 9}, logging={"every": "2 epochs"})
    assert train(tmp_path, config).steps == 10
    assert [row["step"] for row in evaluations(tmp_path)] == [4, 7, 10]
    assert Store(tmp_path / "checkpoints").steps() == [4, 7, 10]
    rows = [row for row in read(tmp_path) if row["kind"] == "train"]
    assert [(row["step"], row["epoch"]) for row in rows] == [(7, 2.24), (10, 3.2)]
    assert json.loads((tmp_path / "machine.json").read_text())["steps"] == 10


def test_a_schedule_that_does_not_fit_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"^schedule\.warmup: expected fewer steps than the 12 of cosine, got 4000$"):
        train(tmp_path / "run", small(schedule={"warmup": 4000}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["lamb", "sgd"])
def test_the_name_of_another_optimizer_alone_gives_a_run_that_learns(tmp_path, name):
    train(tmp_path, small(steps=60, optimizer={"name": name}))
    assert losses(tmp_path)[-1][1] < 0.9 * losses(tmp_path)[0][1]

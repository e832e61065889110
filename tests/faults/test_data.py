"""Data that is missing, spoilt, or whose worker is killed."""

import signal

import pytest
import torch

from fullstride.train.checkpoints.store import Store

from ..train.runs import assert_same_run, small
from .processes import Pause, Poison, is_gone, last_line, stopped, until

WORKERS = {"data": {"workers": 2}}


def test_a_killed_worker_ends_the_run_with_a_checkpoint(commands, run, whole):
    training = commands.train(run, small(**WORKERS), Pause("loss", 6)).until_paused()
    one, other = training.workers()
    one.kill()
    until(lambda: is_gone(one), "the worker's end")
    code, text = training.go_on()
    assert code == 4
    assert last_line(text).startswith(f"fullstride: data worker {one.pid} was killed by SIGKILL before micro-batch ")
    assert f"go on with: fullstride resume {run}" in text
    assert is_gone(other)
    newest = Store(run / "checkpoints").newest().documents["state"]
    assert 7 <= 2 * newest["step"] + newest["micro"] <= 7 + 2 * 2  # the workers were at most so far ahead
    commands.finish(run)
    assert_same_run(run, whole)


def test_workers_end_with_a_trainer_that_is_killed(commands, run, whole):
    training = commands.train(run, small(**WORKERS), Pause("loss", 13)).until_paused()
    workers = training.workers()
    assert len(workers) == 2
    training.send(signal.SIGKILL)
    assert training.wait()[0] == -signal.SIGKILL
    until(lambda: all(map(is_gone, workers)), "the workers' end")
    commands.finish(run)
    assert_same_run(run, whole)


def test_workers_that_outlive_a_killed_trainer_do_not_keep_its_folder(commands, run, whole):
    training = commands.train(run, small(**WORKERS), Pause("loss", 13)).until_paused()
    workers = training.workers()
    with stopped(workers):
        training.send(signal.SIGKILL)
        assert training.wait()[0] == -signal.SIGKILL
        commands.finish(run)
        assert not any(map(is_gone, workers))
    assert_same_run(run, whole)


@pytest.mark.parametrize("background", [False, True])
def test_batches_of_nan_end_the_run_and_leave_good_weights_to_go_on_from(commands, run, whole, background):
    config = small(max_nonfinite=3, checkpoints={"background": background})
    code, text = commands.train(run, config, Poison(2 * 6 + 1)).wait()
    assert code == 3
    assert last_line(text).startswith("fullstride: 3 steps in a row had a gradient that is not finite; the checkpoints")
    assert text.count("skipped: its gradient is not finite") == 3
    newest = Store(run / "checkpoints").newest()
    assert newest.step == 5
    assert all(tensor.isfinite().all() for part in newest.tensors.values() for tensor in part.values())
    commands.finish(run)  # with the data repaired
    assert_same_run(run, whole)


def test_a_learning_rate_out_of_bounds_ends_the_run_in_its_own_exit_code(commands, run):
    config = small(optimizer={"lr": 1e30}, clip=None, max_nonfinite=3, checkpoints={"every": 1})
    code, text = commands.train(run, config).wait()
    assert code == 3
    assert last_line(text).startswith("fullstride: ")
    newest = Store(run / "checkpoints").newest()
    assert newest is not None, text
    assert newest.step == 3  # the first moved the weights out of all bounds, the two after it were skipped
    assert all(torch.isfinite(tensor).all() for tensor in newest.tensors["model"].values())


def test_missing_data_names_the_command_that_gets_it(commands, run):
    folder = run.parent / "my digits"
    code, text = commands.start("train", "mlp-mnist", "--data.path", folder, "--run", run).wait()
    assert code == 2
    assert text.count("\n") == 1
    assert text.startswith(f"fullstride: no MNIST in {folder} (")
    assert f"`fullstride data mnist --path '{folder}'`" in text
    assert not run.exists()

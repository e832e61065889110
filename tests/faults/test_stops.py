"""Signals from outside, in the middle of everything: what is asked for happens, and resuming gives the same bits."""

import signal

import pytest

from fullstride.train.checkpoints.store import Store

from ..train.runs import assert_same_run, small
from .processes import Pause, last_line, until

STEP_3 = 6  # micro-batches before it
EVALUATION_OF_STEP_8 = 3  # batches of evaluations before it


def newest(run):
    """(step, micro-batches of the next step that are done, step of the last evaluation) of the newest checkpoint"""
    state = Store(run / "checkpoints").newest().documents["state"]
    return state["step"], state["micro"], state["evaluated"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_the_middle_of_an_accumulation_saves_and_stops_there(commands, run, whole, number, code):
    training = commands.train(run, small(), Pause("loss", STEP_3)).until_paused()
    training.send(number)
    found, text = training.go_on()
    assert found == code
    assert f"saved at step 3; go on with: fullstride resume {run}" in text
    assert last_line(text) == f"fullstride: stopped by {number.name}"
    assert newest(run) == (3, 1, 0)
    commands.finish(run)
    assert_same_run(run, whole)


def test_sigterm_in_an_evaluation_saves_and_stops_there(commands, run, whole):
    training = commands.train(run, small(), Pause("score", EVALUATION_OF_STEP_8 + 1)).until_paused()
    training.send(signal.SIGTERM)
    code, _ = training.go_on()
    assert code == 143
    assert newest(run) == (8, 0, 4)
    commands.finish(run)
    assert_same_run(run, whole)


def test_sigterm_in_the_last_evaluation_is_a_stop_before_the_end(commands, run, whole):
    training = commands.train(run, small(), Pause("score", 2 * EVALUATION_OF_STEP_8)).until_paused()
    training.send(signal.SIGTERM)
    code, _ = training.go_on()
    assert code == 143
    assert newest(run) == (12, 0, 8)
    commands.finish(run)
    assert_same_run(run, whole)


def test_sigterm_before_the_first_step_saves_that(commands, run, whole):
    training = commands.train(run, small(), Pause("loss", 0)).until_paused()
    training.send(signal.SIGTERM)
    code, _ = training.go_on()
    assert code == 143
    assert newest(run) == (0, 1, 0)
    commands.finish(run)
    assert_same_run(run, whole)


def test_sigusr1_saves_and_goes_on(commands, run, whole):
    training = commands.train(run, small(checkpoints={"keep": 9}), Pause("loss", STEP_3)).until_paused()
    training.send(signal.SIGUSR1)
    code, _ = training.go_on()
    assert code == 0
    assert Store(run / "checkpoints").steps() == [3, 5, 10, 12]
    assert_same_run(run, whole)


def test_a_run_resumed_again_and_again_is_the_same_run(commands, run, whole):
    """Stopped twice in a step, at an epoch's end (50 samples, 3 steps) and in an evaluation, by every signal."""
    training = commands.train(run, small(), Pause("loss", 5))
    for number, pause in [
        (signal.SIGTERM, Pause("loss", 0)),
        (signal.SIGINT, Pause("loss", 0)),
        (signal.SIGTERM, Pause("score", 1)),
        (signal.SIGKILL, Pause("loss", 9)),
        (signal.SIGTERM, None),
    ]:
        training.until_paused().send(number)
        if number != signal.SIGKILL:
            training.go_on()
        code, text = training.wait()
        assert code == (-number if number == signal.SIGKILL else 128 + number), text
        training = commands.resume(run, pause)
    assert training.wait()[0] == 0
    assert_same_run(run, whole)


def test_a_second_ctrl_c_leaves_at_once(commands, run):
    """In a pause that nothing else ends. Two that come at the same time are one to a process, so until it is seen."""
    training = commands.train(run, small(), Pause("loss", STEP_3)).until_paused()

    def is_gone_after_one_more():
        if training.is_alive:
            training.send(signal.SIGINT)
        return not training.is_alive

    until(is_gone_after_one_more, "an end by SIGINT")
    code, text = training.wait()
    assert code == 130
    assert "saved" not in text
    assert Store(run / "checkpoints").newest() is None

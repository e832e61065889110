import numpy as np
import pytest

from fullstride.report import run as runs

from .runs import eval_row, event_row, make_folder, make_run, rows, train_row


def test_time_goes_on_through_a_resume():
    run = make_run(rows())
    assert run.times.tolist() == [2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5, 20.0]
    assert run.seconds == 21.0  # and a second after the last row, says the end


def test_evaluations_take_place_at_the_time_of_their_step():
    assert make_run(rows()).time_of([0, 20, 22, 40]).tolist() == [0.0, 10.0, 11.0, 20.0]


def test_resumes_are_the_starts_after_the_first():
    assert make_run(rows()).resumes == [20]


def test_without_events_a_change_of_attempt_is_a_resume():
    assert make_run([row for row in rows() if row["kind"] != "event"]).resumes == [20]


def test_end_counts_only_if_nothing_started_after_it():
    run = make_run([event_row(0, "start"), event_row(40, "end"), event_row(40, "start")])
    assert run.end is None
    assert make_run(rows()).end["step"] == 40


def test_steps_repeated_by_the_next_attempt_count_once(tmp_path):
    first = [train_row(step, loss=9.0) for step in (5, 10, 15)]
    second = [train_row(step, attempt=2, seconds=step - 10) for step in (15, 20)]
    run = runs.read(make_folder(tmp_path, first + second))
    assert [(row["step"], row["attempt"]) for row in run.train] == [(5, 1), (10, 1), (15, 2), (20, 2)]
    assert run.times.tolist() == [2.5, 5.0, 10.0, 15.0]


def test_counter_of_each_process_is_added_up():
    found = runs.cumulative(np.array([1.0, 3.0, np.nan, 3.0, 4.0, 2.0]), [1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(found, [1.0, 3.0, np.nan, 6.0, 7.0, 9.0])


def test_metrics_are_those_of_evaluations_the_judged_one_first():
    row = eval_row(5, 0.5, aardvark=1.0, note="text")
    assert make_run([row]).metrics() == ["accuracy", "aardvark"]


def test_best_is_the_last_that_was_one():
    found = [eval_row(10, 0.5), eval_row(20, 0.9), eval_row(30, 0.8, best=False)]
    assert make_run(found).best()["step"] == 20


def test_skipped_steps_are_a_running_count():
    assert make_run([train_row(5, skipped=1), train_row(10, skipped=3)]).skipped == 3


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "x", True])
def test_what_is_no_finite_number_is_none(value):
    assert runs.number({"x": value}, "x") is None

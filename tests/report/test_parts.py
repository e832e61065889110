"""What the sections say, without drawing them."""

import numpy as np
import pytest

from fullstride.report import gradients, headline, learning, resources, speed, surroundings
from fullstride.report.run import Run

from .runs import eval_row, event_row, make_run, rows, train_row


def test_status_tells_finished_stopped_and_unfinished_runs_apart():
    stopped = [train_row(20), event_row(20, "end", stopped="accuracy was not better in 3 evaluations")]
    assert headline.status(make_run(rows())) == ("finished, 40 of 40 steps", True)
    expected = "stopped after 20 of 40 steps: accuracy was not better in 3 evaluations"
    assert headline.status(make_run(stopped)) == (expected, True)
    assert headline.status(make_run([train_row(20)])) == ("not finished: 20 of 40 steps", False)


def test_energy_of_all_attempts_is_added_and_labelled():
    found = [train_row(5, joules=100.0), train_row(10, joules=200.0), train_row(15, attempt=2, joules=50.0)]
    run = make_run(found)
    assert resources.energy(run) == (250.0, "measured")
    assert any(tile.label == "energy" and tile.value == "250\N{NO-BREAK SPACE}J" for tile in headline.tiles(run))


@pytest.mark.parametrize("joules", [None, 0.0])
def test_energy_is_never_zero(joules):
    run = make_run([train_row(5, joules=joules)])
    assert resources.energy(run) == (None, "unavailable: this system has no counters")


def test_time_by_part_is_what_rows_say_and_unknown_parts_are_other():
    found = [train_row(5, time={"forward": 1.0, "metrics": 0.25, "wall": 1.25}), train_row(15, time={"forward": 2.0})]
    ends, steps, seconds = speed.time_by_part(make_run(found))
    names = list(speed.PARTS)
    assert ends.tolist() == [5, 15]
    assert steps.tolist() == [5, 10]
    assert seconds[names.index("forward")].tolist() == [1.0, 2.0]
    assert seconds[names.index("other")].tolist() == [0.25, 0.0]
    assert seconds.sum() == 3.25


def test_row_after_a_resume_holds_the_time_of_its_own_process_only():
    found = [train_row(190), event_row(194, "start", attempt=2), train_row(195, attempt=2), train_row(200, attempt=2)]
    ends, steps, _ = speed.time_by_part(make_run(found))
    assert ends.tolist() == [190, 195, 200]
    assert steps.tolist() == [190, 1, 5]


def test_layers_keep_the_order_of_the_model_and_gaps_stay_gaps():
    found = [train_row(5, grad_norms={"b": 1.0, "a": 2.0}), train_row(10, grad_norms={"b": None, "a": 3.0, "c": 4.0})]
    layers, steps, norms = gradients.by_layer(make_run(found))
    assert layers == ["b", "a", "c"]
    assert steps.tolist() == [5, 10]
    np.testing.assert_array_equal(norms, [[1.0, np.nan], [2.0, 3.0], [np.nan, 4.0]])


def test_heat_map_has_as_many_columns_for_a_row_as_steps_it_stands_for():
    cells, first, last = gradients.columns(np.array([2.0, 4.0, 5.0]), np.array([[1.0, np.nan, 3.0]]))
    np.testing.assert_array_equal(cells, [[1.0, 1.0, np.nan, np.nan, 3.0]])
    assert (first, last) == (0.0, 5.0)


def test_heat_map_of_many_rows_shows_means():
    steps = np.arange(1.0, 1601.0)
    cells, _, _ = gradients.columns(steps, steps[None])
    assert cells.shape == (1, 160)
    assert cells[0, 0] == np.mean(steps[:10])


def test_heat_map_of_one_row_is_that_row():
    cells, first, last = gradients.columns(np.array([3.0]), np.array([[7.0]]))
    assert (cells.tolist(), first, last) == ([[7.0, 7.0, 7.0]], 0.0, 3.0)


def test_skipped_steps_are_said():
    assert gradients.section(make_run([train_row(5)])).text == "No step was skipped: every gradient was finite."
    assert gradients.section(make_run([train_row(5, skipped=2)])).text.startswith("2 steps were skipped")


def test_losses_that_are_not_finite_are_counted():
    text = learning.section(make_run([train_row(5, loss=None), train_row(10)])).text
    assert "not finite in 1 of 2 logged rows" in text


def test_table_of_many_evaluations_is_short_and_has_the_best_and_the_last():
    found = [eval_row(step, 0.5, best=step == 33) for step in range(1, 101)]
    table = learning.section(make_run(found)).tables[-1]
    steps = [row[0] for row in table.rows]
    assert len(steps) <= 10
    assert "33 (best)" in steps
    assert steps[-1] == "100"


def test_run_that_simply_ran_has_no_list_of_events():
    assert surroundings.events_section(make_run([event_row(0, "start"), event_row(40, "end")])) is None


def test_events_are_told_in_words():
    cells = surroundings.events_section(make_run(rows())).tables[0].rows
    assert cells == [("0", "started"), ("20", "a new process went on from here"), ("40", "finished")]
    assert surroundings.describe(event_row(3, "layer_frozen", layer="a", seconds=1.0)) == "layer frozen: layer a"


@pytest.mark.parametrize(
    ("recorded", "rows"),
    [
        (None, []),
        ({"float32": "onednn"}, [("Products in float32", "onednn")]),  # as earlier versions wrote it
        (
            {"float32": {"few rows": "torch", "many rows": "native"}},
            [("Products in float32", "few rows torch, many rows native")],
        ),
    ],
)
def test_who_multiplied_is_shown(recorded, rows):
    section = surroundings.machine_section(Run(machine={"environment": {"products": recorded}}))
    assert section is not None
    assert [row for row in section.tables[0].rows if row[0].startswith("Products")] == rows

"""The section on memory: what the run measured, and what batches cost."""

import pytest

from fullstride.report import memory, surroundings

from .runs import event_row, make_run, train_row

MEASURED = {"parameters": 2e8, "optimizer": 4e8, "gradients": 2e8, "activations": 1.5e7, "temporary": 5e5,
            "resident": 1.2e9, "peak": 1.3e9}  # fmt: skip
BATCHES = {
    "batches": [
        {"name": "16", "micro_batch": 16, "accumulate": 1, "before": 3e8, **MEASURED},
        {"name": "32", "micro_batch": 32, "accumulate": 1, "before": 3e8, **MEASURED, "activations": 3e7},
        {"name": "16 x 2", "micro_batch": 16, "accumulate": 2, "before": 3e8, **MEASURED, "temporary": None},
        {"name": "64", "micro_batch": 64, "accumulate": 1, "failed": "killed by signal 9"},
    ]
}


def plain(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_what_the_run_measured_is_a_table():
    section = memory.section(make_run([event_row(2, "memory", **MEASURED)]))
    rows = {row[0]: plain(row[2]) for row in section.tables[0].rows}
    assert rows["parameters"] == "200 MB"
    assert rows["temporary"] == "500 kB"
    assert rows["peak"] == "1.30 GB"
    assert rows["the rest of the process"] == "400 MB"
    assert "816 MB, the largest part optimizer. The process held 1.30 GB at most by then." in plain(section.text)


def test_of_several_processes_the_last_is_shown():
    rows = [event_row(9, "memory", attempt=1, parameters=1), event_row(4, "memory", attempt=2, parameters=2)]
    assert memory.measured(make_run(rows))["parameters"] == 2


def test_batches_are_a_table_a_picture_and_words():
    section = memory.section(make_run(memory=BATCHES))
    assert [row[0] for row in section.tables[0].rows] == ["16", "32", "16 x 2", "64"]
    assert plain(section.tables[0].rows[0][-1]) == "1.00 GB"  # grown by
    assert set(section.tables[0].rows[3][1:]) == {"-"}
    assert "The activations of 16 x 2 take 1.00 times those of 16 and 0.50 times those of 32." in section.text
    assert len(section.figures) == 1


def test_a_batch_that_failed_has_no_bar():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    canvas = Figure()
    memory.section(make_run(memory=BATCHES)).figures[0].draw(canvas)
    assert [label.get_text() for label in canvas.axes[0].get_yticklabels()] == ["16", "32", "16 x 2"]
    assert not memory.section(make_run(memory={"batches": BATCHES["batches"][3:]})).figures


@pytest.mark.parametrize("found", [None, {}, {"batches": 3}, {"batches": []}, {"batches": [4]}])
def test_without_anything_measured_there_is_no_section(found):
    assert memory.section(make_run([train_row(5)], memory=found)) is None


def test_what_is_missing_is_a_dash():
    section = memory.section(make_run([event_row(2, "memory", parameters=1e6)], memory={"batches": [{}]}))
    assert plain(section.tables[0].rows[1][2]) == "-"
    assert section.tables[1].rows[0][0] == "?"


def test_measuring_is_no_event_to_tell():
    run = make_run([event_row(0, "start"), event_row(2, "memory", **MEASURED), event_row(40, "end")])
    assert surroundings.events_section(run) is None

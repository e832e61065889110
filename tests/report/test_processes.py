"""The section on several processes: how the run was shared, who sent what, who waited for whom."""

import re

import numpy as np
import pytest

from fullstride.report import headline, processes
from fullstride.report.page import page
from fullstride.report.run import read
from fullstride.report.style import LIGHT
from fullstride.run_folder import stragglers

from ..distributed import training
from .page_reader import Page
from .runs import MACHINE, event_row, make_run, train_row

HOW = "2 processes, one micro-batch each a step; gradients are sent in fp32 (asked for)"
HOSTS = ["alpha", "beta"]
SHARED = MACHINE | {"hosts": HOSTS, "processes": HOW}
SECOND_IS_SLOW = (0.5, 0.2)  # shares of waiting


def ranks(*shares, **changes):
    wall = stragglers.SPELL
    return [{"sent_mb": 10.0, "wait": wall * share, "wall": wall, "resident_mb": 900.0} | changes for share in shares]


def shared_rows(steps, *shares, attempt=1):
    return [train_row(step, attempt, ranks=ranks(*shares)) for step in steps]


def shared_run(rows, **changes):
    return make_run([event_row(0, "start"), *rows], **{"machine": SHARED} | changes)


def section(rows, **changes):
    return processes.section(shared_run(rows, **changes))


def plain(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


def cells(found):
    return [[plain(cell) for cell in row] for row in found.tables[0].rows]


def drawn(found):
    """The axes of its picture."""
    from matplotlib.figure import Figure

    canvas = Figure()
    found.figures[0].draw(canvas)
    return canvas.axes[0]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """12 steps of two processes."""
    folder = training.train(2, training.mlp(steps=12), tmp_path_factory.mktemp("real") / "run")
    return read(folder)


def test_a_real_run_of_two_processes_is_told_and_drawn(real):
    found = processes.section(real)
    assert found.text.startswith("2 processes, 2 micro-batches each a step; gradients are ")
    assert re.search(r"gradients are (sent|summed in shared memory) in fp32 \(", found.text)
    assert "Shown is" not in found.text  # there is but one attempt
    assert [row[0] for row in cells(found)] == [f"rank {rank} on {host}" for rank, host in enumerate(real.hosts)]
    assert "-" not in np.ravel(cells(found))
    lines = drawn(found).get_lines()
    assert [len(line.get_xdata()) for line in lines] == [12, 12]


def test_the_page_of_a_real_run_has_the_section_after_time(real, fast_figures):
    read_page = Page(page(real))
    ids = [attributes["id"] for attributes in read_page.all("section")]
    assert ids[ids.index("time") + 1] == "processes"
    assert "Share of the time that each process waited for others" in read_page.text


def test_a_run_of_one_process_has_no_section():
    assert processes.section(make_run([train_row(5), train_row(10)])) is None


def test_a_run_without_rows_has_no_section():
    assert section([]) is None


def test_table_has_means_by_step_and_by_time_and_the_peak():
    rows = [train_row(5, ranks=ranks(0.5, 0.1)), train_row(20, ranks=ranks(0.1, 0.3, wall=30.0, resident_mb=950.0))]
    assert cells(section(rows)) == [
        ["rank 0 on alpha", "1.00", "15.0 %", "950 MB"],  # 20 MB in 20 steps; 6 s of 40 s
        ["rank 1 on beta", "1.00", "10.0 %", "950 MB"],
    ]


def test_picture_has_a_line_a_rank_in_the_colour_of_its_row():
    found = section(shared_rows((5, 10, 15), 0.5, 0.2))
    axes = drawn(found)
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[0.5] * 3, [0.2] * 3]
    assert [line.get_color() for line in axes.get_lines()] == [LIGHT[name] for name in found.tables[0].colours]
    assert legend(axes) == ["rank 0 on alpha", "rank 1 on beta"]


def test_of_more_processes_than_colours_the_extremes_have_one():
    shares = [0.3] * 20
    shares[7], shares[11] = 0.1, 0.5
    found = section(shared_rows((5, 10, 15), *shares), machine=MACHINE)
    lines = {line.get_label(): line.get_color() for line in drawn(found).get_lines()}
    assert lines["rank 7"] == LIGHT["vermilion"]
    assert lines["rank 11"] == LIGHT["blue"]
    assert len(drawn(found).get_lines()) == 20
    assert legend(drawn(found)) == ["rank 7", "rank 11"]
    assert (found.tables[0].fold, found.tables[0].colours) == ("All 20 processes", ())


def test_picture_of_a_long_run_is_thinned():
    lines = drawn(section(shared_rows(range(1, 5001), 0.5, 0.2))).get_lines()
    assert max(len(line.get_xdata()) for line in lines) <= 400


def test_a_straggler_is_named_with_its_share_and_rows():
    rows = shared_rows((5, 10), 0.3, 0.3) + shared_rows((15, 20, 25, 30), *SECOND_IS_SLOW)
    expected = "In 4 of 6 logged rows rank 1 on beta was slower than the others, which waited for it 30 % of the time."
    assert expected in plain(section(rows).text)


def test_of_several_stragglers_the_longest_is_named():
    rows = shared_rows((5, 10, 15), 0.1, 0.4) + shared_rows((20, 25, 30, 35), *SECOND_IS_SLOW)
    text = section(rows).text
    assert "In 4 of 7 logged rows rank 1 on beta was slower" in text
    assert "In others another one was." in text


def test_one_that_is_slow_in_two_rows_is_no_straggler():
    rows = shared_rows((5, 10), *SECOND_IS_SLOW) + shared_rows((15, 20), 0.3, 0.3)
    assert "No process was slower than the others for long." in section(rows).text


def test_of_too_few_rows_nothing_is_said_of_slowness():
    assert "slower" not in section(shared_rows((5, 10), *SECOND_IS_SLOW)).text


RESUMED = [event_row(10, "start", attempt=2), event_row(20, "start", attempt=3)]


def test_after_a_resume_with_another_number_the_last_attempt_is_shown():
    rows = shared_rows((5, 10), 0.1, 0.2, 0.3, 0.4) + shared_rows((25, 30), 0.1, 0.3, attempt=3)
    found = section([*rows, train_row(15, 2), train_row(20, 2), *RESUMED])
    assert found.text.startswith(
        f"{HOW}. Shown is the last attempt, steps 21 to 30. The number of processes changed when the run was resumed:"
        " 4 up to step 10, then 1 up to step 20, then 2 up to step 30."
    )
    assert [row[0] for row in cells(found)] == ["rank 0 on alpha", "rank 1 on beta"]
    assert drawn(found).get_lines()[0].get_xdata().tolist() == [25, 30]
    assert drawn(found).get_xlim()[0] == 20


def test_after_a_resume_with_the_same_number_only_the_attempt_is_told():
    rows = shared_rows((5, 10), 0.1, 0.3) + shared_rows((15, 20), 0.1, 0.3, attempt=2)
    text = section([*rows, RESUMED[0]]).text
    assert "Shown is the last attempt, steps 11 to 20." in text
    assert "changed" not in text


def test_an_attempt_of_one_process_after_several_leaves_these_shown():
    rows = [*shared_rows((5, 10), 0.1, 0.3), train_row(15, 2), RESUMED[0]]
    found = section(rows, machine=MACHINE)
    assert found.text.startswith("Shown is the last attempt with rows of several processes, steps 1 to 10.")
    assert "2 up to step 10, then 1 up to step 15." in found.text


def test_hosts_of_an_attempt_without_rows_are_not_given_to_the_one_before():
    found = section([*shared_rows((5, 10), 0.1, 0.3), RESUMED[0]])
    assert HOW not in found.text
    assert [row[0] for row in cells(found)] == ["rank 0", "rank 1"]


def test_steps_that_were_done_anew_count_once():
    rows = shared_rows((5, 10, 15), 0.1, 0.3) + shared_rows((12,), 0.1, 0.3, 0.2, attempt=2)
    found = section([*rows, RESUMED[0]], machine=MACHINE)
    assert "2 up to step 10, then 3 up to step 12." in found.text


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(None, id="none"),
        pytest.param(3, id="no list"),
        pytest.param([], id="empty"),
        pytest.param([None, 4], id="no ranks in it"),
        pytest.param(ranks(0.9), id="a rank is missing"),
        pytest.param(ranks(0.9, 0.9, 0.9), id="one too many"),
        pytest.param(ranks(0.9, 0.9, sent_mb="x", wait=None, wall=True, resident_mb=float("nan")), id="no numbers"),
    ],
)
def test_rows_that_are_damaged_are_passed_over(damaged):
    whole = shared_rows((5, 15, 20), *SECOND_IS_SLOW)
    found = section([whole[0], train_row(10, ranks=damaged), *whole[1:]])
    assert cells(found)[1][1:] == ["2.00", "20.0 %", "900 MB"]  # 30 MB in 15 steps
    assert "In 3 of 3 logged rows rank 1 on beta was slower" in found.text
    assert drawn(found).get_lines()[0].get_ydata().tolist() == [0.5] * 3


def test_rows_in_which_no_time_passed_have_no_share():
    rows = [train_row(5, ranks=ranks(0.5, 0.2)), train_row(10, ranks=ranks(0.0, 0.0, wall=0.0))]
    found = section(rows)
    assert [row[2] for row in cells(found)] == ["50.0 %", "20.0 %"]
    assert drawn(found).get_lines()[0].get_ydata().tolist() == [0.5]


def test_what_is_not_known_of_any_row_is_a_dash_and_no_picture():
    found = section([train_row(5, ranks=[{}, {}])])
    assert cells(found) == [["rank 0 on alpha", "-", "-", "-"], ["rank 1 on beta", "-", "-", "-"]]
    assert found.figures == []


@pytest.mark.parametrize("machine", [{}, {"hosts": 3, "processes": 4}, {"hosts": ["alpha"]}])
def test_without_hosts_ranks_have_their_numbers(machine):
    found = section(shared_rows((5, 10), 0.1, 0.3), machine=machine)
    assert [row[0] for row in cells(found)] == ["rank 0", "rank 1"]


def test_headline_counts_the_threads_of_all():
    assert "2 threads in each of 2 processes" in headline.sentence(shared_run([]))
    assert "2 threads, fp32" in headline.sentence(make_run())

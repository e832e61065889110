"""What is said of the cores, and pictures of them."""

import pytest

from fullstride.report import cores, drawing, resources

from .runs import make_run, train_row


def rows(**changes):
    return [train_row(step, **{"cores": {"0": 1.0, "1": 0.9}, "own_cores": 1.71} | changes) for step in (5, 10, 15)]


def test_cores_are_told_with_what_others_took():
    text = resources.section(make_run(rows())).text.replace("\N{NO-BREAK SPACE}", " ")
    assert text.startswith("Both cores were 95 % busy (90 % to 100 % each); 10 % of that was other processes.")
    assert "This one used 1.71 cores' worth of time." in text


def test_rows_count_by_their_time():
    found = [*rows(), train_row(20, cores={"0": 0.0, "1": 0.0}, own_cores=0.0, time={"forward": 7.5})]  # as all others
    assert "48\N{NO-BREAK SPACE}% busy" in cores.text(make_run(found))


def test_one_core_is_named():
    text = cores.text(make_run(rows(cores={"3": 0.5}, own_cores=0.5)))
    assert text.startswith("Core 3 was 50\N{NO-BREAK SPACE}% busy; 0\N{NO-BREAK SPACE}% of that")


def test_a_system_that_does_not_tell_is_said_to():
    run = make_run(rows(cores={}))
    assert cores.text(run) == (
        "The process used 1.71 cores' worth of time; this system does not tell how busy each core was."
    )
    assert cores.figures(run) == []


@pytest.mark.parametrize("found", [[], [train_row(5)], [train_row(5, cores=3, own_cores="x")]])
def test_runs_of_earlier_versions_have_nothing_of_it(found):
    run = make_run(found)
    assert (cores.text(run), cores.figures(run)) == ("", [])


def test_rows_that_came_too_soon_are_passed_over():
    assert cores.text(make_run([*rows(), train_row(20, cores={}, own_cores=None)])) == cores.text(make_run(rows()))


def test_both_pictures_can_be_drawn_of_any_number_of_cores():
    for count in (1, 2, 70):
        run = make_run(rows(cores={str(i): 0.5 for i in range(count)}, own_cores=0.4 * count))
        drawn = [drawing.draw(figure, i) for i, figure in enumerate(cores.figures(run))]
        assert len(drawn) == 2
        assert "core 0" in drawn[0]

"""Which process the others wait for."""

import pytest

from fullstride.run_folder.stragglers import lasting, straggler


def ranks(*shares):
    return [{"wait": 2 * share, "wall": 2.0} for share in shares]


def test_the_one_that_waits_least_is_the_slowest():
    slowest, share = straggler(ranks(0.5, 0.1, 0.3))
    assert slowest == 1
    assert share == pytest.approx(0.3)  # the mean of what the others wait longer


def test_processes_that_wait_alike_wait_for_nobody():
    assert straggler(ranks(0.4, 0.4)) == (0, 0.0)


def test_a_row_without_time_has_no_waiting():
    assert straggler([{"wait": 0.0, "wall": 0.0}] * 2) == (0, 0.0)


@pytest.mark.parametrize(
    ("found", "rank"),
    [
        pytest.param([(1, 0.2)] * 3, 1, id="in three rows"),
        pytest.param([(0, 0.5), (1, 0.2), (1, 0.2), (1, 0.2)], 1, id="in the last three"),
        pytest.param([(1, 0.2)] * 2, None, id="too few rows"),
        pytest.param([(1, 0.2), (0, 0.2), (1, 0.2)], None, id="not always the same"),
        pytest.param([(1, 0.2), (1, 0.1), (1, 0.2)], None, id="once by no more than a tenth"),
        pytest.param([(1, 0.2), (1, 0.2), (1, 0.2), (1, 0.0)], None, id="no longer"),
        pytest.param([], None, id="no row"),
    ],
)
def test_only_what_lasts_is_named(found, rank):
    assert lasting(found) == rank

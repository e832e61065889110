"""Which process the others wait for."""

import pytest

from fullstride.run_folder.stragglers import SPELL, Spell, is_lasting, spells, straggler


def row(*shares, seconds=SPELL):
    return [{"wait": seconds * share, "wall": seconds} for share in shares]


def test_the_one_that_waits_least_is_the_slowest():
    slowest, share = straggler([1.0, 0.2, 0.6], [2.0, 2.0, 2.0])
    assert slowest == 1
    assert share == pytest.approx(0.3)  # the mean of what the others wait longer


def test_processes_that_wait_alike_wait_for_nobody():
    assert straggler([0.8, 0.8], [2.0, 2.0]) == (0, 0.0)


def test_rows_are_put_together_until_they_are_a_spell():
    rows = [row(0.5, 0.1, seconds=SPELL / 4), row(0.1, 0.5, seconds=SPELL / 2), row(0.1, 0.5, seconds=SPELL / 4)] * 2
    found = list(spells(rows))
    assert [(spell.rank, spell.num_rows) for spell in found] == [(0, 3)] * 2
    assert found[0].share == pytest.approx(0.75 * 0.4 - 0.25 * 0.4)


def test_a_long_row_is_a_spell_by_itself():
    assert [spell.num_rows for spell in spells([row(0.1, 0.3, seconds=5 * SPELL)] * 2)] == [1, 1]


@pytest.mark.parametrize("seconds", [0.0, SPELL / 3])
def test_rows_that_make_up_no_spell_tell_nothing(seconds):
    assert list(spells([row(0.0, 0.9, seconds=seconds)] * 2)) == []


def test_a_spell_lasts_as_long_for_every_process():
    """One that joins late counts from its own beginning."""
    short, long = {"wait": 0.1, "wall": SPELL / 2}, {"wait": 0.2, "wall": SPELL}
    assert [spell.num_rows for spell in spells([[short, long]] * 2)] == [2]


def of(*found):
    return [Spell(rank, share, 5) for rank, share in found]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(of((1, 0.2), (1, 0.2), (1, 0.2)), True, id="three"),
        pytest.param(of((0, 0.5), (1, 0.2), (1, 0.2), (1, 0.2)), True, id="the last three"),
        pytest.param(of((1, 0.2), (1, 0.2)), False, id="too few"),
        pytest.param(of((1, 0.2), (0, 0.2), (1, 0.2)), False, id="not always the same"),
        pytest.param(of((1, 0.2), (1, 0.1), (1, 0.2)), False, id="once by no more than a tenth"),
        pytest.param(of((1, 0.2), (1, 0.2), (1, 0.2), (1, 0.0)), False, id="no longer"),
        pytest.param([], False, id="none"),
    ],
)
def test_only_what_lasts_is_named(found, expected):
    assert is_lasting(found) is expected

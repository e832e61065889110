"""How much fits into the time that was asked for."""

import pytest

from fullstride.studies.ablate.switching import ALL, ALL_FP32, STOCK
from fullstride.studies.ablate.timing import FEWEST_ROUNDS, MOST_ROUNDS, Plan, Turns

from . import tiny

PARTS = [(STOCK, False)] * 10 + [(ALL, False)] * 10


@pytest.mark.parametrize("minutes", [8, 20, 60])
def test_rounds_fill_the_time_and_keep_to_it(minutes):
    plan = tiny.plan()
    turns = plan.most_turns(PARTS, 60 * minutes)
    expected = plan.expected(PARTS, turns)
    assert expected <= 60 * minutes * 1.1
    assert expected > 60 * minutes / 3 or turns[ALL].rounds == MOST_ROUNDS


def test_more_time_is_more_rounds_then_longer_ones():
    plan = tiny.plan(step=0.25)
    found = [plan.turns(ALL, seconds) for seconds in (1.0, 2.5, 7.0, 100.0)]
    assert found == [Turns(3, 1), Turns(5, 1), Turns(7, 2), Turns(7, 4)]


def test_three_rounds_are_the_least_and_it_is_said_that_they_take_longer():
    plan = tiny.plan(step=10.0)
    turns = plan.most_turns(PARTS, 60)
    assert turns[STOCK] == turns[ALL] == Turns(FEWEST_ROUNDS, 1)
    lines = plan.lines(PARTS, turns, 60)
    assert lines[0] == "20 parts, about 44 min; the same command goes on where it was stopped"
    assert lines[-1] == "  more than the 60 s that are left, with as little as tells; --only NAME takes fewer"
    assert "more than" not in "".join(tiny.plan().lines(PARTS, tiny.plan().most_turns(PARTS, 1200), 1200))


def test_short_steps_are_taken_many_at_a_time_even_in_a_hurry():
    assert tiny.plan(step=0.01).turns(ALL, 0.0) == Turns(3, 20)


def test_a_turn_holds_no_more_data_than_it_may():
    assert tiny.plan(step=0.01, bytes_of_step=32 << 20).turns(ALL, 100.0) == Turns(7, 2)


def test_a_part_that_is_late_gets_fewer_rounds_and_not_shorter_ones():
    plan, most = tiny.plan(step=0.25), Turns(7, 4)
    found = [plan.turns_now(ALL, False, seconds, most) for seconds in (100.0, 15.0, -5.0)]
    assert found == [Turns(7, 4), Turns(5, 4), Turns(3, 4)]


def test_what_starts_a_reference_for_each_part_takes_longer():
    kept, fresh = tiny.plan(), tiny.plan(is_fresh=True)
    assert fresh.overhead(STOCK) == 2 * kept.overhead(STOCK)
    assert kept.overhead(STOCK, True) == kept.overhead(STOCK) + 60
    assert kept.speed(ALL_FP32).step == 2 * kept.speed(ALL).step


def test_a_plan_is_read_as_it_was_written():
    plan = tiny.plan(step=0.123)
    assert Plan.read(plan.as_json() | {"took": 1.0}) == plan

"""What there is time for."""

import pytest

from fullstride.studies.tune import plan
from fullstride.studies.tune.plan import Session

from . import tiny


def test_each_rung_has_half_of_the_others_and_twice_the_time():
    found = plan.rungs(6, seconds=58.0, startup=2.5, least=0.5)
    assert [rung.num for rung in found] == [7, 4, 3, 2]
    assert [rung.seconds for rung in found] == [1.0, 2.0, 4.0, 8.0]  # 43 turns of a second, 6 starts


def test_little_time_has_fewer_rungs():
    assert [rung.num for rung in plan.rungs(6, seconds=15.0 + 7.5, startup=2.5, least=0.5)] == [7, 4]


def test_less_time_has_fewer_others():
    assert [rung.num for rung in plan.rungs(6, seconds=7.0, startup=2.5, least=0.5)] == [3]


def test_no_time_has_no_rung():
    assert plan.rungs(6, seconds=2.0, startup=2.5, least=0.5) == []
    assert plan.rungs(6, seconds=-1.0, startup=0.0, least=0.5) == []


def test_no_turn_is_longer_than_tells_more(monkeypatch):
    monkeypatch.setattr(plan, "LONGEST", 3.0)
    assert [rung.seconds for rung in plan.rungs(2, seconds=1000.0, startup=0.0, least=0.5)] == [3.0, 3.0]
    assert plan.final(1000.0, least=0.5) == (plan.ROUNDS, 3.0)
    assert plan.final(1000.0, least=5.0) == (plan.ROUNDS, 5.0)  # unless a few steps take longer


@pytest.mark.parametrize("seconds", [60.0, 6.0, 0.0, -5.0])
def test_the_final_has_rounds_enough_for_a_spread(seconds):
    rounds, turn = plan.final(seconds, least=1.0)
    assert plan.FEWEST_ROUNDS <= rounds <= plan.ROUNDS
    assert turn >= 1.0


def test_an_answer_is_waited_for_many_times_as_long_as_it_should_take():
    assert plan.patience(1.0, 2.0) == 120.0
    assert plan.patience(10.0, 20.0) == 600.0
    assert plan.first_patience(60.0) == 600.0
    assert plan.first_patience(3600.0) == 3600.0


def test_a_continued_session_has_spent_what_the_first_one_had(tmp_path):
    measured = []

    def measure(name):
        measured.append(name)
        return {"name": name}, "done"

    with tiny.opened(tmp_path / "study") as study:
        first = Session(study, 100.0)
        first.parts(["a", "b"], measure)
    with tiny.opened(tmp_path / "study") as study:
        second = Session(study, 100.0)
        assert [part["name"] for part in second.parts(["a", "b"], measure)] == ["a", "b"]
        assert second.part("c", measure)["name"] == "c"
    assert measured == ["a", "b", "c"]
    assert second.left == pytest.approx(first.left - second.study.parts["c"]["took"])

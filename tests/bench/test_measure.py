from contextlib import contextmanager

from fullstride import _native
from fullstride.bench import conditions
from fullstride.bench.measure import Spread, Timing, interleave, spread_of


def test_ratios_are_taken_within_each_round():
    ours, other = Timing((1.0, 2.0, 4.0)), Timing((3.0, 4.0, 6.0))
    assert ours.ratio_to(other) == Spread(median=2.0, lowest=1.5, highest=3.0)
    assert ours.ratio_to(other, scale=10) == Spread(median=20.0, lowest=15.0, highest=30.0)
    assert ours.median == 2.0


def test_sides_take_turns():
    calls: list[str] = []
    timings = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, seconds_per_turn=0)
    assert calls == ["a", "b"] + ["a", "b"] * 3  # one call each to warm up
    assert len(timings["a"].seconds) == len(timings["b"].seconds) == 3


def test_short_calls_are_repeated_within_a_turn(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr("time.perf_counter", lambda: 0.25 * len(calls))  # each call takes a quarter of a second
    timings = interleave({"a": lambda: calls.append(1)}, rounds=3, seconds_per_turn=2.0)
    assert len(calls) == 1 + 1 + 3 * 8  # to warm up, to find the repeats, three turns
    assert timings["a"].seconds == (0.25,) * 3


def test_a_side_takes_its_turns_in_what_is_around_it_and_outside_of_the_time(monkeypatch):
    clock, inside, seen = [0.0], [False], []
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    @contextmanager
    def slow_change():
        clock[0] += 100.0
        inside[0] = True
        yield
        inside[0] = False
        clock[0] += 100.0

    def call():
        seen.append(inside[0])
        clock[0] += 1.0

    timings = interleave({"a": call, "b": call}, rounds=2, seconds_per_turn=0, around={"b": slow_change})
    assert seen == [False, True] * 3
    assert timings["a"].seconds == timings["b"].seconds == (1.0, 1.0)


def test_conditions_name_the_best_instructions_of_the_machine_and_those_in_use():
    found = conditions.conditions()
    assert found["best_isa"] == [isa for isa, able in _native.isas().items() if able][-1]
    assert found["isa"] == _native.isa()


def test_spread_is_median_lowest_and_highest():
    assert spread_of(iter([3.0, 1.0, 2.0])) == {"median": 2.0, "lowest": 1.0, "highest": 3.0}

from fullstride.bench.measure import Spread, Timing, interleave


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


def test_short_calls_are_repeated_within_a_turn():
    calls: list[int] = []
    interleave({"a": lambda: calls.append(1)}, rounds=1, seconds_per_turn=0.001)
    assert len(calls) > 10

from fullstride.train.progress import forecast as module


def test_the_time_left_counts_down_between_rows(monkeypatch):
    now = [50.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    forecast = module.Forecast(total=100, start=0)
    assert forecast.seconds_left(0) is None
    forecast.add({"step": 10, "seconds": 10.0})
    assert forecast.seconds_left(10) == 90.0
    now[0] += 5.0
    assert forecast.seconds_left(10) == 85.0
    assert forecast.seconds_left(30) == 70.0  # faster than expected
    now[0] += 500.0
    assert forecast.seconds_left(10) == 0.0

import numpy as np

from fullstride.report import curves

from .runs import make_run, rows


def test_few_points_stay_as_they_are_and_nan_is_left_out():
    points = curves.thin(np.array([1.0, 2.0, 3.0]), np.array([5.0, np.nan, 7.0]))
    assert points.x.tolist() == [1.0, 3.0]
    assert points.mean.tolist() == [5.0, 7.0]


def test_many_points_become_few_that_keep_mean_and_extremes():
    y = np.random.default_rng(0).normal(size=100_003)
    y[777] = 50.0
    points = curves.thin(np.arange(len(y), dtype=float), y)
    assert len(points.x) == curves.MOST_POINTS
    assert points.high.max() == 50.0
    assert points.low.min() == y.min()
    assert abs(points.mean.mean() - y.mean()) < 1e-3


def test_smoothing_stays_within_the_data_and_keeps_a_constant():
    y = np.array([1.0, 5.0, 2.0, 8.0, 3.0, 9.0, 4.0])
    smooth = curves.smooth(y, 3)
    assert len(smooth) == len(y)
    assert y.min() <= smooth.min() <= smooth.max() <= y.max()
    np.testing.assert_allclose(curves.smooth(np.full(9, 2.5), 5), 2.5)


def test_scale_is_logarithmic_from_thirtyfold_on_and_never_with_zero():
    assert curves.spans_decades(np.array([0.1, np.nan]), np.array([3.0]))
    assert not curves.spans_decades(np.array([0.1, 2.9]))
    assert not curves.spans_decades(np.array([0.0, 100.0]))
    assert not curves.spans_decades(np.array([np.nan]))


def test_time_has_the_unit_that_suits_the_run():
    run = make_run(rows())
    assert curves.time_axis(run).label == "time (s)"
    for row in run.train:
        row["seconds"] *= 1000
    del run.times
    axis = curves.time_axis(run)
    assert axis.label == "time (h)"
    np.testing.assert_allclose(axis.of(run.train)[-1], 20_000 / 3600)
    np.testing.assert_allclose(axis.resumes, [10_000 / 3600])

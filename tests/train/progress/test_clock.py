import contextlib

import pytest

from fullstride.train.progress import clock as module
from fullstride.train.progress.clock import Clock


@pytest.fixture
def passes(monkeypatch):
    """passes(s) lets s seconds pass."""
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_time_belongs_to_the_part_it_passes_in(passes):
    clock = Clock()
    with clock("data"):
        passes(1)
    with clock("forward"):
        passes(2)
    with clock("data"):
        passes(4)
    assert clock.take() == {"data": 5, "forward": 2, "other": 0, "wall": 7}


def test_time_of_no_part_is_other(passes):
    clock = Clock()
    passes(1)
    with clock("data"):
        passes(2)
    passes(4)
    assert clock.take() == {"data": 2, "other": 5, "wall": 7}


def test_a_part_inside_another_is_counted_once(passes):
    clock = Clock()
    with clock("evaluate"):
        passes(1)
        with clock("data"):
            passes(2)
        passes(4)
    assert clock.take() == {"evaluate": 5, "data": 2, "other": 0, "wall": 7}


def test_a_part_inside_itself_is_counted_once(passes):
    clock = Clock()
    with clock("data"):
        passes(1)
        with clock("data"):
            passes(2)
        passes(4)
    assert clock.take() == {"data": 7, "other": 0, "wall": 7}


def test_a_part_that_is_open_goes_on_after_it_was_taken(passes):
    clock = Clock()
    with clock("evaluate"):
        passes(1)
        assert clock.take() == {"evaluate": 1, "other": 0, "wall": 1}
        passes(2)
    assert clock.take() == {"evaluate": 2, "other": 0, "wall": 2}


def test_taken_time_does_not_come_again(passes):
    clock = Clock()
    with clock("data"):
        passes(1)
    clock.take()
    assert clock.take() == {"data": 0, "other": 0, "wall": 0}


def test_an_exception_ends_its_part(passes):
    clock = Clock()
    with contextlib.suppress(KeyError), clock("data"):
        passes(1)
        raise KeyError
    passes(2)
    assert clock.take() == {"data": 1, "other": 2, "wall": 3}


def test_named_parts_are_there_from_the_start(passes):
    assert list(Clock("data", "forward").take()) == ["data", "forward", "other", "wall"]

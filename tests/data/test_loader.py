import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullstride.data import loader as loader_module
from fullstride.data.auto_workers import _MEASURED, _SETTLING, _WATCHED
from fullstride.data.loader import Loader, batches
from fullstride.data.order import Order
from fullstride.data.synthetic import SyntheticDataset


class Numbers:
    """Samples that tell index and epoch, in two tensors of different kinds."""

    def __init__(self, num_samples=10):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def batch(self, indices, epochs):
        return torch.from_numpy(indices * 1.0), torch.from_numpy(np.stack([indices, epochs], 1))


class Growing(Numbers):
    """Later micro-batches are larger than those before."""

    def batch(self, indices, epochs):
        return (torch.full((1 + 100 * int(epochs[0]), 3), float(indices[0]), dtype=torch.bfloat16),)


@pytest.fixture
def load():
    """load(...) makes a Loader that is closed when the test is over."""
    made = []

    def make(dataset, *arguments, **options):
        made.append(Loader(dataset, *arguments, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def take(loader, num):
    return [loader.next() for _ in range(num)]


def equal(one, other):
    return len(one) == len(other) and all(
        len(x) == len(y) and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(x, y, strict=True))
        for x, y in zip(one, other, strict=True)
    )


def test_micro_batches_are_those_of_the_order(load):
    order = Order(num_samples=10, batch=4, seed=1)
    found = take(load(Numbers(), order, workers=0), 6)
    for number, (x, pairs) in enumerate(found):
        indices, epochs = order.micro_batch(number)
        assert x.tolist() == indices.tolist()
        assert pairs.tolist() == np.stack([indices, epochs], 1).tolist()


@settings(max_examples=8)  # of real processes
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.lists(st.integers(0, 9), max_size=2))
def test_any_number_of_workers_and_any_resume_give_the_same_data(num_workers, prefetch, batch, stops):
    order = Order(num_samples=10, batch=batch, seed=5)
    alone = take(Loader(Numbers(), order, workers=0), 9)
    found = []
    for start, end in zip([0, *sorted(stops)], [*sorted(stops), 9], strict=True):
        loader = Loader(Numbers(), order, start, num_workers, prefetch)
        found += take(loader, end - start)
        assert loader.position == end
        loader.close()
    assert equal(found, alone)


def test_float_samples_of_workers_have_the_same_bits(load):
    data, order = SyntheticDataset(num_samples=300), Order(300, 128)
    assert equal(take(load(data, order, workers=2), 6), take(load(data, order, workers=0), 6))


def test_micro_batches_may_outgrow_the_memory_that_is_shared(load):
    order = Order(num_samples=4, batch=2, shuffle=False)
    found = take(load(Growing(), order, workers=2), 10)
    assert equal(found, take(load(Growing(), order, workers=0), 10))
    assert found[-1][0].shape == (401, 3)


def test_kept_micro_batch_is_not_written_again(load):
    loader = load(Numbers(), Order(10, 4), workers=1, prefetch=1)
    kept = take(loader, 5)
    copies = [tuple(x.clone() for x in batch) for batch in kept]
    take(loader, 10)
    assert equal(kept, copies)


def test_closed_loader_goes_on_where_it_was(load):
    order = Order(10, 4)
    loader = load(Numbers(), order, workers=2)
    found = take(loader, 3)
    loader.close()
    assert equal(found + take(loader, 3), take(load(Numbers(), order, workers=0), 6))


def test_evaluation_sees_every_sample_once_in_order():
    found = list(batches(Numbers(10), 4))
    assert [x.tolist() for x, _ in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(pairs[:, 1].eq(0).all() for _, pairs in found)


# ---- auto: times are told, not measured ------------------------------------------------------------------------------


@pytest.fixture
def cores(monkeypatch):
    """cores(n) makes a machine of n cores; the workers are stand-ins that count themselves."""

    def make(num):
        monkeypatch.setattr(loader_module, "_most_workers", lambda: max(1, num - 1))
        monkeypatch.setattr(loader_module, "Workers", Pretended)

    return make


class Pretended:
    """Makes the micro-batches of Workers in this process."""

    def __init__(self, dataset, order, first, num, prefetch, like):
        self.number, self.make = first, lambda number: dataset.batch(*order.micro_batch(number))

    def next(self):
        self.number += 1
        return self.make(self.number - 1)

    def close(self):
        pass


def run(loader, seconds, num):
    """`num` micro-batches; seconds(workers) gives waited and computed of one. Returns the numbers of workers used."""
    used = []
    for _ in range(num):
        loader.next()
        loader.observe(*seconds(loader.num_workers))
        used.append(loader.num_workers)
    return used


ENOUGH = _SETTLING + _WATCHED + 40 * (_MEASURED + _SETTLING + 64)


def test_auto_begins_with_none_and_says_so(load):
    loader = load(Numbers(), Order(10, 4))
    assert loader.num_workers == 0
    assert loader.choice == "data workers: none (nothing measured yet)"


def test_auto_stays_with_none_while_waiting_is_short(load, cores):
    cores(8)
    loader = load(Numbers(), Order(10, 4))
    assert set(run(loader, lambda num: (0.0009, 0.0991), ENOUGH)) == {0}
    assert loader.choice == "data workers: none (waiting for data took 0.90 % of the time)"


def test_slow_beginning_of_a_run_is_not_taken_for_waiting(load, cores):
    cores(8)
    loader = load(Numbers(), Order(10, 4))
    run(loader, lambda num: (1.0, 0.1), _SETTLING)
    run(loader, lambda num: (0.0, 0.1), _WATCHED)
    assert loader.choice == "data workers: none (waiting for data took 0.00 % of the time)"


def test_auto_takes_workers_that_save_time(load, cores):
    cores(2)
    loader = load(Numbers(), Order(10, 4))
    assert run(loader, lambda num: (0.001, 0.1) if num else (0.02, 0.1), ENOUGH)[-1] == 1
    assert loader.choice == "data workers: 1 (a micro-batch took 120.00 ms with none, 101.00 ms with 1)"


def test_auto_returns_to_none_if_workers_slow_down_the_computation(load, cores):
    cores(8)
    loader = load(Numbers(), Order(10, 4))
    used = run(loader, lambda num: (0.0, 0.13) if num else (0.02, 0.1), ENOUGH)
    assert used[-1] == 0
    assert set(used) == {0, 1}
    assert loader.choice == "data workers: none (a micro-batch took 120.00 ms with none, 130.00 ms with 1)"


def test_difference_within_chance_is_not_worth_a_core(load, cores):
    cores(2)
    loader = load(Numbers(), Order(10, 4))
    assert run(loader, lambda num: (0.0, 0.119) if num else (0.02, 0.1), ENOUGH)[-1] == 0


def test_auto_doubles_while_it_helps_and_leaves_a_core(load, cores):
    cores(8)
    loader = load(Numbers(), Order(10, 4))
    used = run(loader, lambda num: (0.8 / max(num, 0.9), 0.1), ENOUGH)
    assert used[-1] == 7
    assert sorted(set(used)) == [0, 1, 2, 4, 7]


def test_auto_stops_at_the_best(load, cores):
    cores(64)
    loader = load(Numbers(), Order(10, 4))
    used = run(loader, lambda num: (max(0.0, 0.3 - 0.15 * num), 0.1 + 0.01 * num), ENOUGH)
    assert used[-1] == 2
    assert max(used) == 4


def test_one_disturbed_measurement_does_not_decide(load, cores):
    cores(2)
    loader = load(Numbers(), Order(10, 4))
    with_worker = []

    def seconds(num):
        with_worker.append(num)
        disturbed = 1.0 if 0 < sum(with_worker) <= _MEASURED else 0.0  # the first measurement of a worker
        return (0.0, 0.1 + disturbed) if num else (0.05, 0.1)

    assert run(loader, seconds, ENOUGH)[-1] == 1


def test_data_is_the_same_while_auto_measures(load, cores):
    cores(4)
    order = Order(10, 4)
    loader, found = load(Numbers(), order), []
    for _ in range(600):
        found.append(loader.next())
        loader.observe(0.5 / (1 + loader.num_workers), 0.1)
    assert loader.num_workers == 3
    assert equal(found, take(load(Numbers(), order, workers=0), 600))


def test_auto_does_without_workers_that_cannot_be_started(load, cores, monkeypatch, caplog):
    cores(2)

    def refuse(*_):
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(loader_module, "Workers", refuse)
    loader = load(Numbers(), Order(10, 4))
    assert run(loader, lambda num: (0.1, 0.1), ENOUGH)[-1] == 0
    assert "could not be started: Resource temporarily unavailable" in loader.choice
    assert loader.choice in caplog.messages
    with pytest.raises(OSError, match=r"^2 data workers could not be started .* try fewer, or 0$"):
        load(Numbers(), Order(10, 4), workers=2).next()


def test_workers_asked_for_are_not_measured(load):
    loader = load(Numbers(), Order(10, 4), workers=0)
    assert set(run(loader, lambda num: (1.0, 0.1), 2 * _WATCHED)) == {0}
    assert loader.choice == "data workers: none (as asked for)"
    assert load(Numbers(), Order(10, 4), workers=3).choice == "data workers: 3 (as asked for)"


@pytest.mark.parametrize("wish", [-1, 1.5, True, "many", None])
def test_impossible_number_of_workers_is_refused(wish):
    with pytest.raises(ValueError, match=r"^workers: expected a number from 0 on, or auto; got "):
        Loader(Numbers(), Order(10, 4), workers=wish)


def test_impossible_prefetch_is_refused():
    with pytest.raises(ValueError, match=r"^prefetch: expected a number from 1 on, got 0$"):
        Loader(Numbers(), Order(10, 4), prefetch=0)

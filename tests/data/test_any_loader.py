"""Batches of other people's loaders: in every way of stopping and going on, the same ones."""

import random
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from fullstride.data import any_loader
from fullstride.data.any_loader import AnyLoader
from fullstride.data.loader import DataEnded, WorkerDied
from fullstride.data.synthetic import SyntheticDataset


class Noisy(Dataset):
    """Draws from all three sources of random numbers."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()])  # noqa: NPY002


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))


class Sampler:
    """Told the epoch, as that of a distributed run is."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(index + self.epoch) % 10 for index in range(10)])

    def __len__(self):
        return 10


NUMBERS = TensorDataset(torch.arange(10.0))
def sampled(**options):
    return DataLoader(NUMBERS, 3, sampler=RandomSampler(NUMBERS, **options))


SOURCES = {
    "a DataLoader in order": lambda: DataLoader(NUMBERS, 3),
    "a DataLoader that shuffles": lambda: DataLoader(NUMBERS, 3, shuffle=True),
    "with a generator": lambda: DataLoader(NUMBERS, 3, shuffle=True, generator=torch.Generator()),
    "with a sampler's generator": lambda: sampled(generator=torch.Generator()),
    "with replacement": lambda: sampled(replacement=True, num_samples=70),
    "a sampler that is told the epoch": lambda: DataLoader(NUMBERS, 3, sampler=Sampler()),
    "a data set that draws": lambda: DataLoader(Noisy(), 3, shuffle=True),
    "with workers": lambda: DataLoader(Noisy(), 3, shuffle=True, num_workers=2),
    "an iterable data set": lambda: DataLoader(Stream(), 3),
    "without batches": lambda: DataLoader(NUMBERS, batch_size=None),
    "a list": lambda: [torch.tensor([float(i)]) for i in range(4)],
    "a generator": lambda: (torch.tensor([float(i)]) for i in range(40)),
}  # fmt: skip


def take(loader, count):
    return [loader.next() for _ in range(count)]


def as_text(batches):
    return [str(batch) for batch in batches]


@pytest.mark.parametrize("position", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("name", SOURCES)
def test_after_a_stop_the_same_batches_come(name, position, caplog):
    caplog.set_level("INFO")
    whole = take(AnyLoader(SOURCES[name](), seed=5), 12)
    before = AnyLoader(SOURCES[name](), seed=5)
    take(before, position)
    state = before.state()
    torch.rand(7), random.random(), np.random.rand()  # noqa: NPY002  # others draw meanwhile
    after = AnyLoader(SOURCES[name](), seed=5, position=position, saved=state)
    assert after.state() == state
    assert as_text(take(after, 12 - position)) == as_text(whole[position:])
    assert "came again as it was" in caplog.text


@pytest.mark.parametrize(
    "name", ["a DataLoader that shuffles", "with a generator", "a data set that draws", "with workers"]
)
def test_each_epoch_has_an_order_of_its_own_and_each_seed_others(name):
    loader = AnyLoader(SOURCES[name](), seed=5)
    first, second = as_text(take(loader, 4)), as_text(take(loader, 4))
    assert first != second
    assert first != as_text(take(AnyLoader(SOURCES[name](), seed=6), 4))
    assert first == as_text(take(AnyLoader(SOURCES[name](), seed=5), 4))


def test_every_sample_comes_once_an_epoch():
    loader = AnyLoader(DataLoader(NUMBERS, 3, shuffle=True), seed=5)
    for _ in range(3):
        assert sorted(torch.cat([batch for (batch,) in take(loader, 4)]).tolist()) == list(range(10))


def test_a_data_set_is_not_read_for_batches_that_are_skipped():
    class Counting(Noisy):
        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return super().__getitem__(index)

    before = AnyLoader(DataLoader(Counting(), 1, shuffle=True))
    take(before, 9)
    data = Counting()
    AnyLoader(DataLoader(data, 1, shuffle=True), position=9, saved=before.state())
    assert data.reads == 1, "the last one, whose checksum is compared"


def test_a_step_that_begins_again_goes_back_over_the_end_of_an_epoch():
    source = SOURCES["a DataLoader that shuffles"]
    whole = take(AnyLoader(source(), seed=5), 8)
    before = AnyLoader(source(), seed=5)
    take(before, 6)  # of which the last four were in a step that was not taken
    after = AnyLoader(source(), seed=5, position=2, saved=before.state())
    assert as_text(take(after, 6)) == as_text(whole[2:])


def test_other_batches_than_before_are_told(caplog):
    before = AnyLoader([torch.zeros(2), torch.ones(2)])
    take(before, 2)
    AnyLoader([torch.zeros(2), torch.full((2,), 3.0)], position=2, saved=before.state())
    assert "not bit for bit the run as it was: the loader gives other batches than before the stop" in caplog.text


FEWER: dict[str, Any] = {
    "a list": lambda count: [torch.zeros(2)] * count,
    "a DataLoader": lambda count: DataLoader(torch.zeros(2 * count, 3), 2),  # whose batches are skipped
    "with workers": lambda count: DataLoader(torch.zeros(2 * count, 3), 2, num_workers=1),
}


@pytest.mark.parametrize("name", FEWER)
def test_fewer_batches_than_before_are_one_line(name):
    before = AnyLoader(FEWER["a list"](5))
    take(before, 4)
    list(FEWER["with workers"](1))  # torch puts its handler in place once
    for_children = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(ValueError, match=r"^train_loader: expected at least 4 batches, .* got 2; give the loader that"):
        AnyLoader(FEWER[name](2), position=4, saved=before.state())
    assert signal.getsignal(signal.SIGCHLD) == for_children


def test_a_generator_ends():
    loader = AnyLoader(iter([1, 2]))
    assert take(loader, 2) == [1, 2]
    with pytest.raises(DataEnded):
        loader.next()


def test_an_empty_loader_is_one_line():
    for ask in (lambda: AnyLoader([]).next(), lambda: any_loader.peek([])):
        with pytest.raises(ValueError, match=r"^train_loader: expected at least one batch an epoch, got none$"):
            ask()


class Deadly(Noisy):
    def __getitem__(self, index):
        import os

        os._exit(9)


def test_a_worker_that_dies_is_told():
    loader = AnyLoader(DataLoader(Deadly(), 3, num_workers=1))
    with pytest.raises(WorkerDied, match="DataLoader worker"):
        loader.next()
    loader.close()


def test_a_worker_that_dies_while_batches_come_again_is_told():
    saved = {"position": 2, "starts": [0], "checksum": None}
    with pytest.raises(WorkerDied, match="DataLoader worker"):
        AnyLoader(DataLoader(Deadly(), 3, num_workers=1), position=2, saved=saved)


def test_looking_at_the_first_batch_takes_nothing_away():
    first, source = any_loader.peek(iter([1, 2, 3]))
    assert (first, list(source)) == (1, [1, 2, 3])
    numbers = [1, 2]
    assert any_loader.peek(numbers) == (1, numbers)


@pytest.mark.parametrize(
    ("source", "length"),
    [([1, 2], 2), (iter([1]), None), (DataLoader(NUMBERS, 3), 4), (DataLoader(Stream(), 3), None)],
)
def test_a_length_is_known_where_there_is_one(source, length):
    assert any_loader.length(source) == length


@pytest.mark.parametrize(
    ("source", "count"),
    [
        (DataLoader(NUMBERS, 4), 10),
        (DataLoader(NUMBERS, 4, drop_last=True), 8),
        (sampled(replacement=True, num_samples=70), 70),
        (DataLoader(NUMBERS, 3, sampler=range(5)), 5),
        (DataLoader(NUMBERS, batch_sampler=[[0, 1], [2]]), 10),  # which tells no better
        (DataLoader(NUMBERS, batch_sampler=BatchSampler(range(7), 3, drop_last=False)), 7),
        ([torch.zeros(4), torch.zeros(3)], 7),
        (iter([1]), None),
    ],
)
def test_samples_are_known_where_the_loader_tells(source, count):
    assert any_loader.num_samples(source, 4) == count


def test_the_checksum_sees_values_shapes_and_kinds():
    batches = [
        torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.tensor([0, 0, 0, 1.0]),
        torch.zeros(0), torch.zeros(4, dtype=torch.bfloat16), {"a": torch.zeros(4), "b": 1},
        {"a": torch.zeros(4), "b": 2}, np.zeros(4), [torch.zeros(4), "text"], torch.tensor(3.0),
        torch.zeros(4, dtype=torch.bool),
    ]  # fmt: skip
    sums = [any_loader.checksum(batch) for batch in batches]
    assert len(set(sums)) == len(sums)
    assert sums == [any_loader.checksum(batch) for batch in batches]
    turned = torch.arange(6.0).reshape(2, 3).T
    assert any_loader.checksum(turned) != any_loader.checksum(torch.arange(6.0).reshape(3, 2))


def test_synthetic_data_is_a_data_set_that_a_data_loader_takes():
    data = SyntheticDataset(20, 6, 3, seed=4)
    assert isinstance(data, Dataset)
    x, labels = next(iter(DataLoader(data, 8)))
    own_x, own_labels = data.batch(np.arange(8), np.zeros(8, np.int64))
    assert torch.equal(x, own_x)
    assert torch.equal(labels, own_labels)
    assert torch.equal(data[-1][0], data[19][0])
    with pytest.raises(IndexError, match="expected an index below 20, got 20"):
        data[20]
    assert sum(len(labels) for _, labels in DataLoader(data, 8, shuffle=True, num_workers=1)) == 20

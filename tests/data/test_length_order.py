from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullstride.data.length_order import LengthOrder
from fullstride.data.sharing import Share, SharedOrder

lengths = st.lists(st.integers(1, 900), min_size=1, max_size=50).map(lambda values: np.array(values, np.int64))
sizes = st.integers(1, 12)
seeds = st.integers(0, 2**63 - 1)


def stream(orders, micro_batches):
    """(epoch, index) of each sample, as the processes read them between them."""
    found: list[tuple[int, int]] = []
    for number in micro_batches:
        for order in orders:
            indices, epochs = order.micro_batch(number)
            found += zip(epochs.tolist(), indices.tolist(), strict=True)
    return found


@given(lengths, sizes, seeds, st.integers(1, 4))
def test_every_sample_comes_once_an_epoch_whatever_the_world(values, batch, seed, world):
    order = LengthOrder(values, batch, seed)
    orders = [SharedOrder(order, Share(world, rank, accumulate=world)) for rank in range(world)]
    found = stream(orders, range(-(-3 * order.batches_of_epoch // world)))
    whole = [sample for sample in found if sample[0] < 3]
    assert Counter(whole) == Counter((epoch, index) for epoch in range(3) for index in range(len(values)))


@given(lengths, sizes, seeds, st.integers(2, 4))
def test_several_ranks_read_what_one_would(values, batch, seed, world):
    order = LengthOrder(values, batch, seed)
    orders = [SharedOrder(order, Share(world, rank, accumulate=world)) for rank in range(world)]
    assert stream(orders, range(4)) == stream([LengthOrder(values, batch, seed)], range(4 * world))


@given(lengths, sizes, seeds, st.lists(st.integers(0, 10**15), min_size=1, max_size=5))
def test_a_micro_batch_does_not_depend_on_what_was_read_before(values, batch, seed, numbers):
    used = LengthOrder(values, batch, seed)
    for number in numbers:
        fresh = LengthOrder(values, batch, seed).micro_batch(number)
        assert [part.tolist() for part in used.micro_batch(number)] == [part.tolist() for part in fresh]


def test_a_number_far_ahead_has_its_epoch():
    indices, epochs = LengthOrder(np.arange(1, 101), 10).micro_batch(10 * 10**12 + 3)
    assert epochs.tolist() == [10**12] * 10
    assert len(set(indices.tolist())) == 10


def sentences(count):
    """Frames of sentences of 1 to 8 seconds, most of them of 2 to 4."""
    seconds = np.clip(np.random.default_rng(3).lognormal(1.1, 0.4, count), 1, 8)
    return np.round(seconds * 22050 / 256).astype(np.int64)


def test_less_than_a_tenth_of_sentences_is_padding():
    order = LengthOrder(sentences(2000), 16)
    assert all(0 < order.padding(epoch) < 0.1 for epoch in range(3))


def test_padding_is_what_the_batches_need():
    order = LengthOrder(sentences(200), 16, seed=5)
    batches = [order.lengths[order.micro_batch(number)[0]] for number in range(order.batches_of_epoch)]
    padded = sum(int(batch.max()) * len(batch) for batch in batches)
    assert order.padding(0) == pytest.approx(1 - order.lengths.sum() / padded)


def test_samples_of_one_length_need_no_padding():
    assert LengthOrder(np.full(50, 7), 16).padding() == 0


def test_padding_counts_the_way_to_the_next_multiple():
    assert LengthOrder(np.full(50, 24), 16, multiple=32).padding() == 0.25


def test_epochs_and_seeds_have_batches_and_orders_of_their_own():
    values = sentences(200)
    orders = {
        tuple(tuple(batch.tolist()) for batch in LengthOrder(values, 16, seed).epoch(epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9
    assert len({frozenset(frozenset(batch) for batch in order) for order in orders}) == 9  # not just shuffled


def test_only_the_shortest_samples_make_a_smaller_batch():
    values = np.arange(1000, 1021)
    batches = LengthOrder(values, 8, jitter=0).epoch(4)
    assert sorted(map(len, batches)) == [5, 8, 8]
    assert min(batches, key=len).tolist() == [4, 3, 2, 1, 0]


def test_order_is_pinned():
    """A run that was begun with one version is resumed with the next one in the same order."""
    order = LengthOrder(np.arange(10, 110, 10), 3, seed=3)
    assert [batch.tolist() for batch in order.epoch(5)] == [[9, 8, 7], [3, 2, 1], [6, 5, 4], [0]]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"lengths": np.empty(0, np.int64)}, "lengths: expected those of one sample at least"),
        ({"batch": 0}, "batch: expected a number from 1 on, got 0"),
        ({"jitter": 1.0}, "jitter: expected a share from 0 to 1, got 1.0"),
    ],
)
def test_what_makes_no_order_is_one_line(changed, line):
    with pytest.raises(ValueError, match=line):
        LengthOrder(**({"lengths": np.arange(1, 5), "batch": 2} | changed))

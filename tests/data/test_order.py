from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullstride.data.order import Order, permutation
from fullstride.data.sharing import Share, SharedOrder

sizes = st.integers(1, 40)  # of data sets and batches: either may be the larger


def stream(num_samples, batch, seed, world, micro_batches, shuffle=True):
    """(epoch, index) of each position, as `world` processes read them between them."""
    of_one = Order(num_samples, batch, seed, shuffle)
    orders = [SharedOrder(of_one, Share(world, rank, accumulate=world)) for rank in range(world)]
    found: list[tuple[int, int]] = []
    for number in micro_batches:
        for order in orders:
            indices, epochs = order.micro_batch(number)
            assert len(indices) == len(epochs) == batch
            found += zip(epochs.tolist(), indices.tolist(), strict=True)
    return found


@given(sizes, sizes, st.integers(0, 2**64 - 1), st.integers(1, 5))
def test_every_sample_comes_once_an_epoch_whatever_the_world_and_the_batch(num_samples, batch, seed, world):
    num_micro_batches = -(-3 * num_samples // (world * batch))  # three epochs at least
    found = stream(num_samples, batch, seed, world, range(num_micro_batches))
    whole = [sample for sample in found if sample[0] < 3]
    assert Counter(whole) == Counter((epoch, index) for epoch in range(3) for index in range(num_samples))


@given(sizes, sizes, st.integers(1, 5), st.lists(st.integers(0, 12), max_size=4))
def test_resuming_anywhere_goes_on_as_if_nothing_had_happened(num_samples, batch, world, stops):
    whole = stream(num_samples, batch, 7, world, range(12))
    edges = [0, *sorted(stops), 12]
    parts = [stream(num_samples, batch, 7, world, range(*edge)) for edge in pairwise(edges)]
    assert list(chain(*parts)) == whole


@given(sizes, sizes, sizes, st.integers(1, 4), st.integers(1, 4))
def test_stream_does_not_depend_on_how_it_is_cut(num_samples, batch, other_batch, world, other_world):
    one = stream(num_samples, batch, 3, world, range(5))
    other = stream(num_samples, other_batch, 3, other_world, range(5))
    common = min(len(one), len(other))
    assert one[:common] == other[:common]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [tuple(permutation(50, seed, epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(orders)) == 16
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_order_is_pinned():
    """A run that was begun with one version is resumed with the next one in the same order."""
    assert permutation(10, seed=3, epoch=5).tolist() == [0, 6, 2, 1, 3, 4, 7, 8, 5, 9]


def test_unshuffled_samples_come_in_their_order():
    assert stream(5, 3, 0, 1, range(3), shuffle=False) == [(s // 5, s % 5) for s in range(9)]


def test_orders_of_past_epochs_are_forgotten():
    order = Order(num_samples=6, batch=4)
    for number in range(20):
        order.micro_batch(number)
    assert set(order._epochs) == {76 // 6, 79 // 6}


def test_far_positions_do_not_overflow():
    indices, epochs = Order(num_samples=3, batch=2).micro_batch(2**60)
    assert epochs.tolist() == [2**61 // 3, (2**61 + 1) // 3]
    assert indices.dtype == epochs.dtype == np.int64


@pytest.mark.parametrize(("name", "value"), [("num_samples", 0), ("batch", 0), ("seed", -1)])
def test_impossible_order_is_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got {value}$"):
        Order(**{"num_samples": 4, "batch": 2, name: value})

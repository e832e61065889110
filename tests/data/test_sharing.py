"""How processes share micro-batches: every sample once, each part alike, and one process as if nothing had happened."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullstride.data.loader import Loader, batches
from fullstride.data.order import Order, seed_of
from fullstride.data.sharing import ALONE, Share, SharedOrder

worlds, accumulations = st.integers(1, 8), st.integers(1, 8)


class Numbers:
    """Each sample is its index and its epoch."""

    def __init__(self, num):
        self.num = num

    def __len__(self):
        return self.num

    def batch(self, indices, epochs):
        return torch.from_numpy(indices.copy()), torch.from_numpy(epochs.copy())


def shares(world, accumulate):
    return [Share(world, rank, accumulate) for rank in range(world)]


def read(num_samples, batch, share, steps):
    """(step, epoch, index) of all samples of a process in so many steps."""
    loader = Loader(Numbers(num_samples), Order(num_samples, batch, seed=3), 0, 0, share=share)
    found = []
    for step in range(steps):
        for _ in range(share.micros):
            indices, epochs = loader.next()
            found += [(step, e, i) for e, i in zip(epochs.tolist(), indices.tolist(), strict=True)]
    return found


@given(worlds, accumulations, st.integers(1, 3), st.integers(1, 30))
def test_every_step_has_the_samples_of_one_process_whatever_the_world(world, accumulate, factor, num_samples):
    batch = factor * Share(world, 0, accumulate).parts
    together = [sample for share in shares(world, accumulate) for sample in read(num_samples, batch, share, 4)]
    assert Counter(together) == Counter(read(num_samples, batch, Share(1, 0, accumulate), 4))


@given(worlds, accumulations)
def test_all_processes_compute_as_much(world, accumulate):
    for share in shares(world, accumulate):
        assert share.micros * world == accumulate * share.parts
        assert world % share.parts == 0


@given(worlds, accumulations)
def test_the_parts_of_a_micro_batch_are_with_neighbours_at_the_same_time(world, accumulate):
    everyone = shares(world, accumulate)
    for position in range(3):
        for first in range(0, world, everyone[0].parts):
            block = everyone[first : first + everyone[0].parts]
            assert len({share.number(position) for share in block}) == 1
            assert [share.part for share in block] == list(range(len(block)))


def test_whole_micro_batches_have_the_seeds_of_one_process():
    alone = [ALONE.seed(7, position) for position in range(8)]
    assert alone == [seed_of(7, position) for position in range(8)]
    for world in (2, 4):
        together = {share.number(k): share.seed(7, k) for share in shares(world, 4) for k in range(8 // world)}
        assert [together[number] for number in range(8)] == alone


def test_parts_of_one_micro_batch_have_seeds_of_their_own():
    assert len({share.seed(7, position) for share in shares(4, 2) for position in range(10)}) == 40


@given(st.integers(1, 20), st.integers(1, 6))
def test_a_batch_is_cut_without_gaps_unless_it_is_shorter_than_the_parts(length, parts):
    cuts = [list(range(length))[Share(parts, rank, 1).cut(length)] for rank in range(parts)]
    if length < parts:
        assert all(cut == list(range(length)) for cut in cuts)
    else:
        assert [i for cut in cuts for i in cut] == list(range(length))
        assert max(map(len, cuts)) - min(map(len, cuts)) <= 1


def test_evaluation_sees_every_sample_once():
    found = [batch[0] for share in shares(3, 1) for batch in batches(Numbers(11), 2, share)]
    assert sorted(torch.cat(found).tolist()) == list(range(11))


def test_a_resumed_run_goes_on_at_another_world_size():
    """3 steps of two processes, then 3 of four: the samples of 6 steps of one."""
    one = read(50, 4, Share(1, 0, 4), 6)
    order = Order(50, 4, seed=3)
    found = []
    for world, first in ((2, 0), (4, 3)):
        for share in shares(world, 4):
            shared = SharedOrder(order, share)
            for step in range(first, first + 3):
                for k in range(step * share.micros, (step + 1) * share.micros):
                    indices, epochs = shared.micro_batch(k)
                    found += [(step, e, i) for e, i in zip(epochs.tolist(), indices.tolist(), strict=True)]
    assert sorted(found) == sorted(one)


@pytest.mark.parametrize(
    ("micro_batch", "accumulate", "world", "near"),
    [(16, 1, 3, "2, 4, 8"), (5, 2, 4, "2, 5, 10"), (1, 1, 2, "one")],
)
def test_a_number_of_processes_that_cannot_share_alike_is_refused(micro_batch, accumulate, world, near):
    said = f"share {accumulate} x {micro_batch} samples a step alike, such as {near}; got {world}"
    with pytest.raises(ValueError, match=said):
        Share(world, 0, accumulate).check(micro_batch)


def test_a_number_of_processes_that_can_share_is_taken():
    for world in (1, 2, 4, 8, 16):
        Share(world, 0, 2).check(8)


def test_numbers_stay_whole_far_out():
    share = Share(4, 3, 2)
    assert share.number(10**15) == (10**15 * 4 + 3) // 2
    indices, _ = SharedOrder(Order(7, 2), share).micro_batch(10**15)
    assert indices.dtype == np.int64

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullstride.data.loader import Loader
from fullstride.data.order import Order
from fullstride.data.token_dataset import IGNORED, TokenDataset
from fullstride.data.token_files import Span, whole


def write(path, tokens):
    np.asarray(tokens, "<u2").tofile(path)
    return whole(path)


def batch(dataset, indices, epoch=0):
    return dataset.batch(np.array(indices, np.int64), np.full(len(indices), epoch, np.int64))


def everything(dataset, epoch=0):
    return batch(dataset, range(len(dataset)), epoch)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tokens") / "x.bin", range(100))


def test_targets_are_the_tokens_that_follow(hundred):
    tokens, targets = everything(TokenDataset([hundred], 7, 100))
    assert tokens.dtype == targets.dtype == torch.int64
    assert tokens.shape == targets.shape == (100 // 7, 7)
    assert torch.equal((tokens + 1) % 100, targets)


@given(epoch=st.integers(0, 1000), seed=st.integers(0, 2**64 - 1), context=st.integers(1, 99))
def test_epoch_cuts_the_ring_without_overlap(hundred, epoch, seed, context):
    dataset = TokenDataset([hundred], context, 100, seed)
    tokens = everything(dataset, epoch)[0].flatten()
    assert len(tokens) == len(dataset) * context > 100 - context
    assert torch.equal(tokens, (tokens[0] + torch.arange(len(tokens))) % 100)


def test_offset_is_a_function_of_seed_and_epoch(hundred):
    def first(seed, epoch):
        return int(batch(TokenDataset([hundred], 10, 100, seed), [0], epoch)[0][0, 0])

    assert [first(3, epoch) for epoch in range(5)] == [first(3, epoch) for epoch in range(5)]
    assert len({first(0, epoch) for epoch in range(200)}) > 70  # most of the hundred places come
    assert len({first(seed, 0) for seed in range(200)}) > 70


def test_samples_are_the_same_in_any_batch(hundred):
    dataset = TokenDataset([hundred], 10, 100)
    together = dataset.batch(np.array([3, 3, 7]), np.array([0, 5, 5]))
    alone = [dataset.batch(np.array([i]), np.array([epoch])) for i, epoch in ((3, 0), (3, 5), (7, 5))]
    assert torch.equal(together[0], torch.cat([tokens for tokens, _ in alone]))


@given(context=st.integers(1, 99))
def test_validation_counts_every_token_but_the_first_once(hundred, context):
    tokens, targets = everything(TokenDataset([hundred], context, 100, shift=False), epoch=3)
    counted = targets != IGNORED
    assert sorted(targets[counted].tolist()) == list(range(1, 100))
    assert torch.equal(tokens[counted] + 1, targets[counted])
    assert torch.equal(tokens[:, 1:] - tokens[:, :-1], torch.ones_like(tokens[:, 1:]))  # nothing is made up


@pytest.mark.parametrize("shift", [True, False])
def test_several_files_are_one_stream(hundred, tmp_path, shift):
    cuts = [0, 1, 3, 40, 41, 100]
    spans = [write(tmp_path / f"{i}.bin", range(*cuts[i : i + 2])) for i in range(5)]
    one, several = TokenDataset([hundred], 9, 100, 1, shift), TokenDataset(spans, 9, 100, 1, shift)
    for epoch in range(20):
        assert all(map(torch.equal, everything(one, epoch), everything(several, epoch)))


def test_span_is_a_part_of_a_file(hundred):
    tokens, _ = everything(TokenDataset([Span(hundred.path, 50, 61)], 10, 100, shift=False))
    assert tokens.tolist() == [list(range(50, 60))]


def test_file_of_tokens_is_not_opened_before_a_sample_is_asked_for(hundred):
    dataset = TokenDataset([hundred], 10, 100)
    assert not dataset._maps
    batch(dataset, [0])
    assert len(dataset._maps) == 1


def test_tokens_are_sent_to_workers_by_name(hundred):
    dataset = TokenDataset([hundred], 10, 100)
    batch(dataset, [0])
    again = pickle.loads(pickle.dumps(dataset))
    assert not again._maps
    assert torch.equal(batch(again, [4])[0], batch(dataset, [4])[0])


def test_batches_have_the_same_bits_with_and_without_workers(hundred):
    dataset = TokenDataset([hundred], 10, 100)
    runs = []
    for workers in (0, 2):
        loader = Loader(dataset, Order(len(dataset), 3, seed=1), workers=workers)
        try:
            runs.append([loader.next() for _ in range(8)])
        finally:
            loader.close()
    for alone, by_workers in zip(*runs, strict=True):
        assert all(map(torch.equal, alone, by_workers))


@pytest.mark.parametrize(("shift", "use"), [(True, "training"), (False, "validation")])
def test_too_few_tokens_for_a_context_are_refused(hundred, shift, use):
    what = rf"x\.bin: has 100 tokens for {use}, expected 101 or more for a context of 100: give more text or a shorter"
    with pytest.raises(ValueError, match=what):
        TokenDataset([hundred], 100, 100, shift=shift)
    assert len(TokenDataset([hundred], 99, 100, shift=shift)) == 1


def test_token_beyond_the_vocabulary_is_named_with_its_place(tmp_path):
    spans = [write(tmp_path / "a.bin", [1] * 50), write(tmp_path / "b.bin", [1] * 30 + [77] + [1] * 19)]
    with pytest.raises(
        ValueError, match=r"b\.bin: token 77 at byte 60: expected one below 77, the vocabulary: the file was"
    ):
        everything(TokenDataset(spans, 10, 77))
    everything(TokenDataset(spans, 10, 78))


def test_file_that_became_shorter_is_refused(tmp_path):
    span = write(tmp_path / "a.bin", range(50))
    dataset = TokenDataset([span], 10, 50)
    write(tmp_path / "a.bin", range(49))
    with pytest.raises(ValueError, match=r"a\.bin: has 49 tokens, and had 50: it was changed while in use"):
        batch(dataset, [0])


@pytest.mark.parametrize(("arguments", "what"), [({"context": 0}, "context"), ({"files": []}, "files")])
def test_senseless_arguments_are_refused(hundred, arguments, what):
    with pytest.raises(ValueError, match=f"^{what}: expected"):
        TokenDataset(**({"files": [hundred], "context": 10, "vocabulary": 100} | arguments))

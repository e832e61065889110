"""Batches of pictures and captions: functions of (seed, epoch, index), whatever else is in the batch."""

import pickle

import numpy as np
import pytest
import torch

from fullstride.data.loader import Loader
from fullstride.data.order import Order
from fullstride.data.pictures.pairs import Change, Pairs, Scaling, Wrong
from fullstride.data.pictures.scenes import Scenes
from fullstride.tokens import captions

CONTEXT = 64


@pytest.fixture(scope="session")
def tokenizer():
    source = Scenes(200, 16)
    return captions.train((source.caption(i, draw) for i in range(200) for draw in (0, 1)), "characters", 0)


def pairs(tokenizer, **settings):
    return Pairs(Scenes(40, 16), tokenizer, CONTEXT, **settings)


def at(*indices, epoch=0):
    places = np.array(indices, np.int64)
    return places, np.full_like(places, epoch)


def test_a_batch_is_tokens_and_images(tokenizer):
    tokens, images = pairs(tokenizer).batch(*at(3, 5))
    assert tokens.dtype == torch.int64
    assert tokens.shape == (2, CONTEXT)
    assert images.dtype == torch.float32
    assert images.shape == (2, 3, 16, 16)
    assert images.is_contiguous()
    assert images.min() >= -1
    assert images.max() <= 1


def test_without_changes_images_are_the_pictures(tokenizer):
    data = pairs(tokenizer)
    _, images = data.batch(*at(7))
    pixels = (images[0].permute(1, 2, 0) + 1) * 127.5
    np.testing.assert_allclose(pixels.numpy(), data.source.picture(7), atol=1e-3)


@pytest.mark.parametrize("remembers", [False, True])
def test_a_sample_has_the_same_bits_in_every_batch(tokenizer, remembers):
    settings = {"change": Change(), "wrong": Wrong(medium=0.5, hard=0.5), "remembers": remembers}
    data = pairs(tokenizer, **settings)
    alone = [pairs(tokenizer, **settings).batch(*at(i, epoch=2)) for i in (9, 4)]
    _, images = data.batch(*at(4, 9, 4, epoch=2))
    texts = data.texts(*at(4, 9, epoch=2))
    assert torch.equal(images[1], alone[0][1][0])
    assert torch.equal(images[0], alone[1][1][0])
    assert torch.equal(images[2], alone[1][1][0])
    assert texts[:2] == [data.texts(*at(i, epoch=2))[0] for i in (4, 9)]
    assert texts == pairs(tokenizer, **settings).texts(*at(4, 9, epoch=2))


def test_epochs_change_pictures_and_phrasings_and_seeds_do(tokenizer):
    data = pairs(tokenizer, change=Change())
    first, second = data.batch(*at(*range(8)))[1], data.batch(*at(*range(8), epoch=1))[1]
    other = pairs(tokenizer, change=Change(), seed=1).batch(*at(*range(8)))[1]
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert data.texts(*at(*range(8))) != data.texts(*at(*range(8), epoch=1))


def test_a_changed_picture_is_moved_by_whole_pixels_and_lit_otherwise(tokenizer):
    """Undone, the light gives pixels that all stand in the original."""
    data = pairs(tokenizer, change=Change(shift=0.2, brightness=0.0, contrast=0.0))
    original = Scaling()(data.source.picture(3)[None])[0]
    moved = data.batch(*at(3, epoch=5))[1][0]
    best = min(
        (moved[:, max(dy, 0) : 16 + min(dy, 0), max(dx, 0) : 16 + min(dx, 0)]
         - original[:, max(-dy, 0) : 16 - max(dy, 0), max(-dx, 0) : 16 - max(dx, 0)]).abs().max().item()
        for dy in range(-4, 5) for dx in range(-4, 5)
    )  # fmt: skip
    assert best < 1e-6


def test_wrong_captions_come_in_the_share_and_the_epochs_asked_for(tokenizer):
    data = pairs(tokenizer, wrong=Wrong(hard=0.5, start=1, full=3))
    counts = [len(data.texts(*at(*range(40), epoch=epoch))) - 40 for epoch in range(5)]
    assert counts == [0, 0, 10, 20, 20]


def test_other_pictures_bring_wrong_captions_in_other_epochs(tokenizer):
    data = pairs(tokenizer, wrong=Wrong(hard=0.2))
    early, late = (set(data.texts(*at(*range(40), epoch=epoch))[40:]) for epoch in (1, 2))
    assert len(early) == len(late) == 8
    assert early != late


def test_all_bring_a_wrong_caption_of_each_kind_with_shares_of_1(tokenizer):
    data = pairs(tokenizer, wrong=Wrong(medium=1.0, hard=1.0))
    texts = data.texts(*at(1, 2, 3))
    assert len(texts) == 9
    own = {data.source.caption(i, draw) for i in (1, 2, 3) for draw in range(50)}
    assert not own & set(texts[3:])


def test_what_is_remembered_does_not_take_more_than_it_may(tokenizer, monkeypatch):
    from fullstride.data.pictures import pairs as module

    monkeypatch.setattr(module, "_MOST_REMEMBERED", 39 * 16 * 16 * 3)
    data = pairs(tokenizer, remembers=True)
    data.batch(*at(0, 1))
    assert data._known is None
    assert not data.remembers


def test_workers_and_a_copy_by_pickle_give_the_same_batches(tokenizer):
    data = pairs(tokenizer, change=Change(), wrong=Wrong(hard=0.5), remembers=True)
    order = Order(len(data), 6, seed=3)
    here = Loader(data, order, workers=0)
    there = Loader(pickle.loads(pickle.dumps(data)), order, workers=2)
    try:
        for _ in range(8):
            for a, b in zip(here.next(), there.next(), strict=True):
                assert torch.equal(a, b)
    finally:
        there.close()


def test_loading_and_preprocessing_are_timed_apart(tokenizer):
    load, preprocess = pairs(tokenizer, change=Change()).seconds(4)
    assert load > 0
    assert preprocess > 0


def test_scaling_takes_the_mean_away_and_divides(tokenizer):
    picture = np.full((1, 2, 2, 3), (255, 0, 51), np.uint8)
    scaled = Scaling((0.5, 0.25, 0.1), (0.5, 0.5, 0.1))(picture)
    np.testing.assert_allclose(scaled[0, :, 0, 0].numpy(), [1.0, -0.5, 1.0], atol=1e-6)


def test_light_is_cut_at_black_and_white():
    picture = np.array([[[[0, 127, 255]]]], np.uint8)
    lit = Scaling()(picture, np.array([2.0]), np.array([0.1]))
    assert lit.min() >= -1
    assert lit.max() == 1

import hashlib
import multiprocessing
import pickle
from dataclasses import replace

import numpy as np
import pytest

from fullstride.data.pictures.scene_plan import COLOURS, SHAPES
from fullstride.data.pictures.scenes import Scenes
from fullstride.data.pictures.source import KINDS

SMALL = Scenes(num=300, size=64, seed=3)


def digest(source, count):
    pictures = hashlib.sha256(b"".join(source.picture(i).tobytes() for i in range(count)))
    captions = [source.caption(i, draw) for i in range(count) for draw in range(3)]
    wrong = [source.wrong_caption(i, kind, draw) for i in range(count) for kind in KINDS for draw in range(3)]
    return pictures.hexdigest()[:16], hashlib.sha256("\n".join(captions + wrong).encode()).hexdigest()[:16]


def test_version_1_has_these_bits_and_words_wherever_it_runs():
    assert digest(Scenes(200, size=64), 200) == ("b1e10eb674f77a40", "a182a913128e386d")
    assert digest(Scenes(20, size=224, first=1000), 20)[0] == "5a38db85f4d3c05e"


def test_sample_is_the_same_alone_and_after_others():
    expected = SMALL.picture(17), SMALL.caption(17, 5), SMALL.wrong_caption(17, "hard", 5)
    for i in range(300):  # more than are kept
        SMALL.picture(i)
    again = SMALL.picture(17), SMALL.caption(17, 5), SMALL.wrong_caption(17, "hard", 5)
    np.testing.assert_array_equal(again[0], expected[0])
    assert again[1:] == expected[1:]


def test_sample_is_the_same_in_a_process_of_its_own():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (picture,) = pool.map(SMALL.picture, [17])
        (wrong,) = pool.starmap(SMALL.wrong_caption, [(17, "easy", 2)])
        (shown,) = pool.map(SMALL.classes()[2].picture, [5])
    np.testing.assert_array_equal(picture, SMALL.picture(17))
    np.testing.assert_array_equal(shown, SMALL.classes()[2].picture(5))
    assert wrong == SMALL.wrong_caption(17, "easy", 2)


def test_split_that_begins_elsewhere_has_the_scenes_of_there():
    other = replace(SMALL, num=10, first=200)
    np.testing.assert_array_equal(other.picture(3), SMALL.picture(203))
    assert [other.caption(i, 4) for i in range(10)] == [SMALL.caption(200 + i, 4) for i in range(10)]


def test_seeds_and_indices_make_scenes_of_their_own():
    plans = {source.plan(i) for source in (SMALL, replace(SMALL, seed=4)) for i in range(300)}
    assert len(plans) == 600


def test_no_scene_of_training_is_held_out():
    train = {Scenes(2000).plan(i) for i in range(2000)}
    held_out = {Scenes(500, first=2000).plan(i) for i in range(500)}
    assert len(train) == 2000
    assert not train & held_out


def test_scene_of_several_things_has_its_facts_for_itself_nearly_always():
    """Pictures always differ; of what captions can say, one thing alone leaves fewer combinations."""
    train = {Scenes(2000).plan(i).scene for i in range(2000)}
    held_out = [Scenes(500, first=2000).plan(i).scene for i in range(500)]
    assert sum(scene in train for scene in held_out if len(scene.things) > 1) == 0
    assert sum(scene in train for scene in held_out) <= 5


@pytest.mark.parametrize("size", [16, 64, 224])
def test_picture_has_the_size_asked_for(size):
    source = Scenes(4, size)
    pictures = [source.picture(i) for i in range(4)]
    assert {(picture.shape, picture.dtype) for picture in pictures} == {((size, size, 3), np.dtype(np.uint8))}
    assert all(picture.std() > 5 for picture in pictures)


def test_fingerprint_tells_all_that_the_content_depends_on():
    sources = [SMALL, *(replace(SMALL, **{name: 77}) for name in ("num", "size", "seed", "first"))]
    assert len({source.fingerprint for source in sources}) == 5
    assert pickle.loads(pickle.dumps(SMALL)).fingerprint == SMALL.fingerprint


@pytest.mark.parametrize("wrong", [{"num": 0}, {"size": 15}, {"first": -1}])
def test_what_makes_no_scenes_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name}: expected a number from .* on, got {wrong[name]}"):
        replace(SMALL, **wrong)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="expected one of easy, medium, hard, got 'hardest'"):
        SMALL.wrong_caption(0, "hardest")


@pytest.mark.parametrize("index", [-1, 300])
def test_index_outside_is_refused(index):
    with pytest.raises(IndexError, match="from 0 to below 300"):
        SMALL.picture(index)


def test_draw_may_be_any_number():
    assert SMALL.caption(0, 2**64 - 1) == SMALL.caption(0, np.uint64(2**64 - 1))
    assert len({SMALL.caption(0, 2**64 - 1 - i) for i in range(20)}) > 10


def test_numbers_of_things_are_as_frequent_as_planned():
    counts = np.bincount([len(Scenes(2000).plan(i).scene.things) for i in range(2000)], minlength=5) / 2000
    np.testing.assert_allclose(counts, [0, 0.15, 0.45, 0.25, 0.15], atol=0.045)  # four standard deviations


def test_classes_are_shapes_colours_and_both():
    shape, colour, both = SMALL.classes()
    assert (shape.name, shape.prompts[0]) == ("shape", "a picture of a circle")
    assert (colour.name, colour.prompts[:2]) == ("colour", ["a picture of a red shape", "a picture of an orange shape"])
    assert (both.name, both.prompts[9]) == ("colour and shape", "a picture of an orange square")
    assert [len(set(one.prompts)) for one in (shape, colour, both)] == [len(SHAPES), len(COLOURS), 64]


def test_classes_have_equally_many_pictures():
    for one in SMALL.classes():
        counts = np.bincount(one.labels)
        assert len(counts) == len(one.prompts)
        assert len(set(counts)) == 1
        assert len(one.labels) >= 200


def test_pictures_of_classes_are_not_those_of_any_split():
    shown = {one.picture(i).tobytes() for one in SMALL.classes() for i in range(40)}
    assert len(shown) == 120
    assert not shown & {SMALL.picture(i).tobytes() for i in range(300)}


def test_splits_of_a_seed_have_the_same_classes():
    for one, other in zip(SMALL.classes(), replace(SMALL, num=5, first=900).classes(), strict=True):
        assert (one.labels, one.prompts) == (other.labels, other.prompts)
        np.testing.assert_array_equal(one.picture(7), other.picture(7))

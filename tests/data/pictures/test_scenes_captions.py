import re
from dataclasses import replace

import pytest

from fullstride.data.pictures.scene_captions import MOST_WORDS, TEMPLATES
from fullstride.data.pictures.scene_layout import OPPOSITE, PLACES, are_clearly_different
from fullstride.data.pictures.scenes import Scenes
from fullstride.data.pictures.source import KINDS

from .scene_reading import falsehoods, mentions, places, relations

SOURCE = Scenes(num=400, size=16, seed=1)
DRAWS = range(6)
EVERY = [(i, draw) for i in range(400) for draw in DRAWS]


def things_of(index):
    return SOURCE.plan(index).scene.things


def test_captions_are_true():
    assert {(i, draw) for i, draw in EVERY if falsehoods(SOURCE.caption(i, draw), SOURCE.plan(i))} == set()


def test_captions_mention_every_thing_once():
    for i, draw in EVERY:
        names = [one.name for one in mentions(SOURCE.caption(i, draw))]
        assert sorted(names) == sorted(thing.name for thing in things_of(i))


def test_most_captions_say_where_and_all_of_draw_0_do():
    says = {}
    for i, draw in EVERY:
        caption = SOURCE.caption(i, draw)
        says[i, draw] = bool([*relations(caption), *places(caption)])
    assert all(says[i, 0] for i in range(400))
    assert 0.6 < sum(says[i, draw] for i, draw in EVERY if draw) / (5 * 400) < 0.9


def test_draw_0_says_sizes_textures_and_background_unless_it_gets_too_long():
    told = 0
    for i in range(400):
        caption, scene = SOURCE.caption(i), SOURCE.plan(i).scene
        said = {one.name: (one.size or "medium", one.texture or "plain") for one in mentions(caption)}
        told += scene.background in caption and all(
            said[thing.name] == (thing.size, thing.texture) for thing in scene.things
        )
    assert told > 370


def test_other_draws_leave_some_of_it_out():
    backgrounds = [SOURCE.plan(i).scene.background in SOURCE.caption(i, draw) for i, draw in EVERY if draw]
    assert 0.4 < sum(backgrounds) / len(backgrounds) < 0.6


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_phrasings_are_many(num):
    assert len(TEMPLATES[num]) >= 4
    index = next(i for i in range(400) if len(things_of(i)) == num)
    assert len({SOURCE.caption(index, draw) for draw in range(60)}) > 20


def test_words_are_put_together_rightly():
    texts = {SOURCE.caption(i, draw) for i, draw in EVERY}
    texts |= {SOURCE.wrong_caption(i, kind) for i in range(400) for kind in KINDS}
    for text in texts:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|  | ,|^ | $|\{|None", text), text
        assert len(text.split()) <= MOST_WORDS


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_captions_are_false(kind):
    reasons = {"things", "relation", "place"}
    for i, draw in EVERY:
        assert falsehoods(SOURCE.wrong_caption(i, kind, draw), SOURCE.plan(i)) & reasons


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_captions_are_no_phrasing_of_the_right_one(kind):
    for i in range(60):
        right = {SOURCE.caption(i, draw) for draw in range(60)}
        assert not right & {SOURCE.wrong_caption(i, kind, draw) for draw in range(60)}


def test_easy_caption_is_that_of_another_scene_of_the_source():
    names = {frozenset(thing.name for thing in things_of(i)) for i in range(400)}
    said = [frozenset(one.name for one in mentions(SOURCE.wrong_caption(i, "easy"))) for i in range(400)]
    assert set(said) <= names
    assert len(set(said)) > 200


def test_easy_caption_of_the_only_scene_is_of_one_drawn_for_it():
    alone = replace(SOURCE, num=1)
    assert all("things" in falsehoods(alone.wrong_caption(0, "easy", draw), alone.plan(0)) for draw in range(50))


def test_medium_caption_shares_colour_or_shape_of_the_first_thing():
    colours = shapes = 0
    for i in range(400):
        first, said = things_of(i)[0], mentions(SOURCE.wrong_caption(i, "medium"))
        colour, shape = (first.colour in {o.colour for o in said}), (first.shape in {o.shape for o in said})
        assert colour or shape
        colours += colour and not shape
        shapes += shape and not colour
    assert min(colours, shapes) > 100


def test_hard_caption_of_one_thing_is_wrong_in_one_point():
    points = {"colour": 0, "shape": 0, "place": 0}
    for i, draw in EVERY:
        if len(things_of(i)) == 1:
            caption, (thing,) = SOURCE.wrong_caption(i, "hard", draw), things_of(i)
            (said,) = mentions(caption)
            wrong = [name for name in ("colour", "shape") if getattr(said, name) != getattr(thing, name)]
            as_seen = caption.replace(f"{said.colour} ", f"{thing.colour} ").replace(said.shape, thing.shape)
            wrong += falsehoods(as_seen, SOURCE.plan(i)) & {"place"}
            assert len(wrong) == 1
            points[wrong[0]] += 1
    assert min(points.values()) > 40


def test_hard_caption_of_several_has_the_same_colours_and_shapes():
    exchanged, related = 0, 0
    for i, draw in EVERY:
        if len(things_of(i)) > 1:
            caption = SOURCE.wrong_caption(i, "hard", draw)
            said = mentions(caption)
            assert sorted(one.colour for one in said) == sorted(thing.colour for thing in things_of(i))
            assert sorted(one.shape for one in said) == sorted(thing.shape for thing in things_of(i))
            assert len({one.name for one in said}) == len(said)
            false = falsehoods(caption, SOURCE.plan(i))
            exchanged += "things" in false
            related += "relation" in false and "things" not in false
    assert min(exchanged, related) > 400


def test_hard_caption_has_another_relation_and_not_only_the_opposite():
    directions = {"left": 0, "right": 0, "above": 0, "below": 0}
    for i, draw in EVERY:
        caption, plan = SOURCE.wrong_caption(i, "hard", draw), SOURCE.plan(i)
        if plan.scene.relation == "left" and "things" not in falsehoods(caption, plan):
            for one, direction, _ in relations(caption):
                is_first = one.name == plan.scene.things[0].name
                directions[direction if is_first else OPPOSITE[direction]] += 1
    assert directions["left"] == 0
    assert min(directions["right"], directions["above"], directions["below"]) > 10


def test_hard_captions_say_where_as_often_as_right_ones():
    """Nobody can tell a wrong caption by its template."""
    right, wrong = (
        sum(bool([*relations(text(i, draw)), *places(text(i, draw))]) for i, draw in EVERY if draw)
        for text in (SOURCE.caption, lambda i, draw: SOURCE.wrong_caption(i, "hard", draw))
    )
    assert abs(right - wrong) < 0.05 * 5 * 400


def test_corner_and_its_side_are_not_clearly_different():
    assert not are_clearly_different("upper left", "left")
    assert not are_clearly_different("top", "upper right")
    assert are_clearly_different("upper left", "upper right")
    assert are_clearly_different("top", "centre")
    assert not any(are_clearly_different(place, place) for place in PLACES)

from itertools import combinations

import numpy as np
import pytest

from fullstride.data.pictures.scene_drawing import COLOURS, draw
from fullstride.data.pictures.scene_draws import Draws
from fullstride.data.pictures.scene_plan import SHAPES, draw_plan
from fullstride.data.pictures.scenes import Scenes

SOURCE = Scenes(num=1000, size=96, seed=2)
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}  # axis, sign


def pixels_of(picture, colour):
    """Where this colour is, whatever its tint; not the second tone of textures."""
    return np.abs(picture - np.array(COLOURS[colour], np.float32)).max(axis=-1) < 20


def single(shape, colour, texture="plain", count=1):
    """Plans of one large thing."""
    found = []
    for i in range(2000):
        plan = draw_plan(Draws(5, 0, i), num=1, colour=colour, shape=shape)
        (thing,) = plan.scene.things
        if (thing.size, thing.texture) == ("large", texture):
            found.append(plan)
        if len(found) == count:
            return found
    raise AssertionError("none drawn")


def test_relation_holds_between_the_pixels_of_both_colours():
    checked = {name: 0 for name in DIRECTIONS}
    for i in range(1000):
        scene = SOURCE.plan(i).scene
        if len(scene.things) == 2 and scene.things[0].colour != scene.things[1].colour and checked[scene.relation] < 20:
            picture = SOURCE.picture(i).astype(np.float32)
            centres = [np.argwhere(pixels_of(picture, thing.colour)).mean(axis=0)[::-1] for thing in scene.things]
            apart = centres[0] - centres[1]
            axis, sign = DIRECTIONS[scene.relation]
            assert sign * apart[axis] > 0.2 * 96
            assert abs(apart[1 - axis]) < 0.6 * abs(apart[axis])
            checked[scene.relation] += 1
    assert set(checked.values()) == {20}


def test_thing_alone_is_where_its_place_says():
    for i in range(300):
        scene = SOURCE.plan(i).scene
        if len(scene.things) == 1:
            picture, (thing,) = SOURCE.picture(i).astype(np.float32), scene.things
            y, x = (np.argwhere(pixels_of(picture, thing.colour)).mean(axis=0) + 0.5) / 96
            row = "upper top" if y < 0.38 else "lower bottom" if y > 0.62 else "left centre right"
            column = "left" if x < 0.38 else "right" if x > 0.62 else "top centre bottom"
            words = thing.place.split()
            assert words[0] in row
            assert words[-1] in column


def test_things_neither_touch_nor_leave_the_picture():
    for i in range(1000):
        looks = SOURCE.plan(i).looks
        for look in looks:
            assert look.radius < min(look.x, look.y, 1 - look.x, 1 - look.y)
        for one, other in combinations(looks, 2):
            assert np.hypot(one.x - other.x, one.y - other.y) > one.radius + other.radius + 0.02


def test_no_two_things_of_a_scene_have_the_same_name():
    for i in range(1000):
        names = [thing.name for thing in SOURCE.plan(i).scene.things]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_is_as_large_as_its_circle_allows(shape):
    for plan in single(shape, "black", count=5):
        (look,) = plan.looks
        rows, columns = np.nonzero(pixels_of(draw(plan, 200).astype(np.float32), "black"))
        distance = np.hypot(columns + 0.5 - 200 * look.x, rows + 0.5 - 200 * look.y) / (200 * look.radius)
        assert 0.85 < distance.max() < 1.02


def test_shapes_cover_as_much_as_geometry_says():
    """Of the square of their radius; inner radius 0.382 of a star's, half a square and two half circles for a heart."""
    areas = {
        "circle": np.pi * 0.81, "square": 2.0, "triangle": 3 * np.sqrt(3) / 4,
        "star": 10 * 0.5 * 0.381966 * np.sin(np.pi / 5), "ring": np.pi * (0.96**2 - 0.42**2),
        "cross": 4 * 0.29 * 0.95 * 2 - 4 * 0.29**2, "heart": 2 * 0.76**2 * (1 + np.pi / 4), "diamond": 2 * 0.64,
    }  # fmt: skip
    for shape, area in areas.items():
        (plan,) = single(shape, "black")
        background = np.median(draw(plan, 200)[..., 1].astype(np.float32), axis=1, keepdims=True)
        darkness = (background - draw(plan, 200)[..., 1]).clip(0) / (background - COLOURS["black"][1])
        covered = (darkness > 0.5).sum() / (200 * plan.looks[0].radius) ** 2
        assert covered == pytest.approx(area, rel=0.03), shape


def test_ring_has_a_hole_and_a_circle_has_none():
    for shape, is_filled in (("ring", False), ("circle", True)):
        (plan,) = single(shape, "red")
        (look,) = plan.looks
        filled = pixels_of(draw(plan, 64).astype(np.float32), "red")[int(64 * look.y), int(64 * look.x)]
        assert filled == is_filled


@pytest.mark.parametrize("texture", ["striped", "dotted", "checkered"])
def test_texture_leaves_about_half_of_the_colour(texture):
    shares = []
    for plan in single("square", "green", texture, count=10):
        (look,) = plan.looks
        covered = pixels_of(draw(plan, 200).astype(np.float32), "green").sum()
        shares.append(covered / (2 * (200 * look.radius) ** 2))
    assert 0.4 < np.mean(shares) < 0.7


def test_colour_is_told_from_every_other_in_any_tint():
    for colour, other in combinations(COLOURS, 2):
        (plan,) = single("circle", colour)
        picture = draw(plan, 64).astype(np.float32)
        assert pixels_of(picture, colour).sum() > 300
        assert pixels_of(picture, other).sum() == 0

"""Scenes whose captions are wrong for a picture, and each for a reason that its words state.

easy, medium    a thing is mentioned that the picture does not have
hard            one alone: another place, colour or shape. Of several, the first two in another relation, or two with
                colours or with shapes exchanged. The rest is right.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

from .scene_draws import Draws
from .scene_layout import OPPOSITE, PLACES, RELATIONS, are_clearly_different
from .scene_plan import COLOURS, SHAPES, Plan, Scene, draw_plan

Mistake = Callable[[], Scene]  # made when it is chosen: most are not
Name = tuple[str, str]  # colour and shape


def mentions_what_is_not_there(said: Scene, seen: Scene) -> bool:
    """Then a caption of `said` is false for `seen`, whatever it leaves out."""
    return not _names(said) <= _names(seen)


def medium(draws: Draws, scene: Scene) -> Scene:
    """The first thing's colour or its shape stays, all else is drawn anew."""
    first = scene.things[0]
    while True:
        if draws.chance(0.5):
            other = draw_plan(draws, colour=first.colour).scene
        else:
            other = draw_plan(draws, shape=first.shape).scene
        if mentions_what_is_not_there(other, scene):
            return other


def hard(plan: Plan, says_where: bool) -> list[list[Mistake]]:
    """By what is wrong; for a caption that says where things are, or none. May be empty: exchanged is the same."""
    if len(plan.scene.things) == 1:
        kinds = _changes_of_one(plan.scene, says_where)
    else:
        kinds = [_relations(plan)] if says_where else []
        kinds += [list(_exchanges(plan.scene, attribute, says_where)) for attribute in ("colour", "shape")]
    return [kind for kind in kinds if kind]


def _names(scene: Scene) -> set[Name]:
    return {thing.name for thing in scene.things}


def _changes_of_one(scene: Scene, says_where: bool) -> list[list[Mistake]]:
    (thing,) = scene.things

    def change(**changes: str) -> Mistake:
        return lambda: replace(scene, things=(replace(thing, **changes),))

    kinds = [
        [change(colour=colour) for colour in COLOURS if colour != thing.colour],
        [change(shape=shape) for shape in SHAPES if shape != thing.shape],
    ]
    if says_where and thing.place:
        places = [place for place in PLACES if are_clearly_different(place, thing.place)]
        kinds.append([change(place=place) for place in places])
    return kinds


def _relations(plan: Plan) -> list[Mistake]:
    """The opposite one, and of the two across that which the pixels contradict, however little."""
    relation = plan.scene.relation
    assert relation is not None
    first, second = plan.looks[:2]
    apart = first.x - second.x, first.y - second.y
    across = 1 - RELATIONS[relation][0]
    others = [name for name, (axis, sign) in RELATIONS.items() if axis == across and sign * apart[axis] < 0]
    return [partial(replace, plan.scene, relation=name) for name in (OPPOSITE[relation], *others)]


def _exchanges(scene: Scene, attribute: str, says_where: bool) -> Iterator[Mistake]:
    """Between two things, if then a thing is mentioned that is not there, or the first two lie the wrong way round."""
    place = ("colour", "shape").index(attribute)
    before = [thing.name for thing in scene.things]
    for i, j in combinations(range(len(before)), 2):
        after = list(before)
        after[i], after[j] = _exchanged(before[i], before[j], place), _exchanged(before[j], before[i], place)
        is_reversed = says_where and (i, j) == (0, 1)
        is_wrong = before[i][place] != before[j][place] and (is_reversed or not set(after) <= set(before))
        if is_wrong and len(set(after)) == len(after):  # as told apart as those of any scene
            yield partial(_named, scene, after)


def _exchanged(name: Name, other: Name, place: int) -> Name:
    return (other[0], name[1]) if place == 0 else (name[0], other[1])


def _named(scene: Scene, names: Sequence[Name]) -> Scene:
    pairs = zip(scene.things, names, strict=True)
    return replace(scene, things=tuple(replace(thing, colour=name[0], shape=name[1]) for thing, name in pairs))

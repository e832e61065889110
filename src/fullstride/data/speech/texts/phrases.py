"""Parts of a sentence, drawn at random: who, does what, to whom, where, when, in agreement with each other.

    subject + tense + action  ->  "the tall waiter" + past progressive + peel(..., "a lemon")
                              ->  "the tall waiter" "was" "peeling a lemon"
The auxiliary stays apart from the rest, for a question to turn it round and "not" to come after it.
"""

from dataclasses import dataclass
from typing import Protocol

from . import modifiers, nouns, verbs
from .inflection import Verb, number, plural, verb, with_article


class Draw(Protocol):
    """Random choices, which go on without an end."""

    def below(self, stop: int) -> int: ...
    def one(self, choices: tuple[str, ...]) -> str: ...
    def chance(self, percent: int) -> bool: ...


@dataclass(frozen=True)
class Subject:
    text: str
    many: bool = False
    is_i: bool = False


@dataclass(frozen=True)
class Action:
    """A verb and all that comes after it."""

    verb: Verb
    rest: str = ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.replace("_", " ") for word in text.split())


WORDS = {name: _words(text) for name, text in vars(modifiers).items() if name.isupper()}
_VERBS = {name: tuple(text.split()) for name, text in vars(verbs).items() if name.isupper()}
_NOUNS = {name: tuple(text.split()) for name, text in vars(nouns).items() if name.isupper()}
_ADJECTIVES = {
    "PEOPLE": "PERSON", "ANIMALS": "ANIMAL", "FOODS": "FOOD", "THINGS": "THING", "VEHICLES": "THING", "PLACES": "PLACE",
    "IDEAS": "IDEA", "NATURE": "THING", "FOOD_MASS": "FOOD", "DRINK_MASS": "FOOD", "IDEA_MASS": "IDEA",
}  # fmt: skip
_PRONOUNS = (
    Subject("I", is_i=True), Subject("you", many=True), Subject("he"), Subject("she"), Subject("we", many=True),
    Subject("they", many=True),
)  # fmt: skip
_POSSESSIVE = ("my", "your", "his", "her", "our", "their")
_OBJECTS = ("him", "her", "them", "everybody", "nobody", "someone")  # not "me": "I helped me"
_MODALS = ("can", "could", "should", "must", "might", "may", "would", "will")
TENSES = (
    "past", "present", "future", "perfect", "past perfect", "progressive", "past progressive", "modal", "going to",
)  # fmt: skip
# Of states, of which nobody says that they are going on: "is knowing".
_STATES = frozenset({
    "agree", "appreciate", "believe", "belong", "deny", "deserve", "doubt", "envy", "expect", "fear", "forget", "hate",
    "know", "lack", "like", "love", "mean", "mind", "need", "notice", "own", "owe", "prefer", "realize", "recall",
    "recognize", "remember", "seem", "suppose", "suspect", "trust", "understand", "value", "want", "wish",
})  # fmt: skip


def a_verb(draw: Draw, kind: str) -> Verb:
    return verb(draw.one(_VERBS[kind]))


def noun(draw: Draw, kind: str, many: bool = False) -> str:
    return one_and_many(draw, kind)[many]


def one_and_many(draw: Draw, kind: str) -> tuple[str, str]:
    return plural(draw.one(_NOUNS[kind]))


def adjective(draw: Draw, kind: str) -> str:
    if kind in ("THINGS", "VEHICLES") and draw.chance(20):
        return draw.one(WORDS["COLORS"])
    return draw.one(WORDS[f"{_ADJECTIVES[kind]}_ADJECTIVES"])


def described(draw: Draw, kind: str, many: bool = False, percent: int = 40) -> str:
    """A noun, and an adjective before it in so many of a hundred cases."""
    before = f"{adjective(draw, kind)} " if kind in _ADJECTIVES and draw.chance(percent) else ""
    return before + noun(draw, kind, many)


def thing(draw: Draw, kind: str, definite: bool = False) -> tuple[str, bool]:
    """(a noun with all that it needs before it, whether it is many). definite: none of which nobody has heard yet."""
    if kind.endswith("MASS"):
        before = ("the ", "", "some ", "his ", "our ", "this ") if not definite else ("the ", "the ", "our ", "this ")
        return draw.one(before) + described(draw, kind), False
    choice = draw.below(10)
    if choice < 3 or (definite and choice in (3, 4, 8)):
        return f"the {described(draw, kind)}", False
    if definite and choice == 9:
        return f"{draw.one(('the', 'these', 'those'))} {described(draw, kind, True)}", True
    if choice < 5:
        return with_article(described(draw, kind)), False
    if choice == 5:
        return f"{draw.one(('this', 'that', 'every', 'another', 'each'))} {described(draw, kind)}", False
    if choice == 6:
        return f"{draw.one(_POSSESSIVE)} {described(draw, kind)}", False
    if choice == 7:
        return f"{draw.one(_POSSESSIVE)} {described(draw, kind, True)}", True
    if choice == 8:
        count = draw.one(("some", "many", "several", "a few", "most", "all the", "a lot of", "these", "those", "few"))
        return f"{count} {described(draw, kind, True)}", True
    return f"{number(2 + draw.below(19)) if draw.chance(60) else 'the'} {described(draw, kind, True)}", True


def person(draw: Draw) -> Subject:
    """Somebody who does something, often named by a pronoun."""
    choice = draw.below(10)
    if choice < 3:
        return _PRONOUNS[draw.below(len(_PRONOUNS))]
    if choice < 5:
        return Subject(draw.one(WORDS["NAMES"]))
    if choice == 5:
        first, second = draw.one(WORDS["NAMES"]), noun(draw, "PEOPLE")
        return Subject(f"{first} and {draw.one(_POSSESSIVE)} {second}", True)
    if choice == 6 and draw.chance(50):
        return Subject(f"the {noun(draw, 'GROUPS')}")
    text, many = thing(draw, "PEOPLE")
    return Subject(text, many)


def somebody(draw: Draw) -> str:
    """A person whom something is done to."""
    choice = draw.below(4)
    if choice == 0:
        return draw.one(_OBJECTS)
    return draw.one(WORDS["NAMES"]) if choice == 1 else thing(draw, "PEOPLE")[0]


def place(draw: Draw) -> str:
    return draw.one(WORDS["CITIES"]) if draw.chance(20) else thing(draw, "PLACES", definite=True)[0]


def where(draw: Draw) -> str:
    """ "behind the old barn", "on the shelf"."""
    if draw.chance(40):
        return f"{draw.one(WORDS['NEAR_THING'])} {thing(draw, 'THINGS', definite=True)[0]}"
    at = draw.one(WORDS["PREPOSITIONS"])
    return f"{at} {thing(draw, 'PLACES', definite=True)[0]}"


def action(draw: Draw, depth: int = 0) -> Action:
    """What a person may do. depth: how many actions this one is part of already."""
    kind = draw.below(15 if depth == 0 else 10)
    if kind < 10:
        return _SIMPLE[kind](draw)
    inner = action(draw, 1)
    if kind < 12:
        return Action(a_verb(draw, "INFINITIVE"), f"to {said(inner.verb.base, inner)}")
    if kind == 12:
        return Action(a_verb(draw, "GERUND"), said(inner.verb.gerund, inner))
    who, tense = person(draw), "past" if kind == 13 else "modal"
    return Action(a_verb(draw, "CLAUSE"), f"{draw.one(('that ', ''))}{statement(draw, who, inner, tense)}")


def _with_thing(draw: Draw) -> Action:
    return Action(a_verb(draw, "THING"), thing(draw, draw.one(("THINGS", "THINGS", "THINGS", "VEHICLES")))[0])


def _with_food(draw: Draw) -> Action:
    return Action(a_verb(draw, "FOOD"), thing(draw, draw.one(("FOODS", "FOOD_MASS")))[0])


def _with_somebody(draw: Draw) -> Action:
    return Action(a_verb(draw, "PERSON"), somebody(draw))


def _with_idea(draw: Draw) -> Action:
    if draw.chance(30):
        return Action(a_verb(draw, "MASS_IDEA"), described(draw, "IDEA_MASS"))
    return Action(a_verb(draw, "IDEA"), thing(draw, "IDEAS")[0])


def _toward_thing(draw: Draw) -> Action:
    return Action(a_verb(draw, "TOWARD_THING"), thing(draw, draw.one(("THINGS", "VEHICLES", "ANIMALS")), True)[0])


def _to_place(draw: Draw) -> Action:
    return Action(a_verb(draw, "MOTION"), place(draw))


def _giving(draw: Draw) -> Action:
    gift = thing(draw, draw.one(("THINGS", "FOODS")))[0]
    return Action(a_verb(draw, "GIVING"), f"{somebody(draw)} {gift}")


def said(form: str, what: Action) -> str:
    """An action by one form of its verb."""
    return " ".join(part for part in (form, what.verb.particle, what.rest) if part)


def statement(draw: Draw, who: Subject, what: Action, tense: str, negative: bool = False) -> str:
    auxiliary, main = finite(draw, who, what.verb, tense, apart=negative)
    if negative:
        auxiliary = negated(auxiliary) if draw.chance(50) else f"{auxiliary} not"
    return " ".join(part for part in (who.text, auxiliary, said(main, what)) if part)


def finite(draw: Draw, who: Subject, what: Verb, tense: str, apart: bool = False) -> tuple[str, str]:
    """(auxiliary, form of the verb). apart: with "do" where there is no other auxiliary."""
    third = not who.many and not who.is_i
    if what.base in _STATES:
        tense = {"progressive": "present", "past progressive": "past"}.get(tense, tense)
    if tense == "past":
        return ("did", what.base) if apart else ("", what.past)
    if tense == "present":
        return ("does" if third else "do", what.base) if apart else ("", what.third if third else what.base)
    if tense == "perfect":
        return "has" if third else "have", what.participle
    if tense == "progressive":
        return be(who), what.gerund
    if tense == "going to":
        return be(who), f"going to {what.base}"
    if tense == "past progressive":
        return be(who, past=True), what.gerund
    fixed = {"future": ("will", what.base), "past perfect": ("had", what.participle)}
    return fixed[tense] if tense in fixed else (draw.one(_MODALS), what.base)


def be(who: Subject, past: bool = False) -> str:
    if past:
        return "were" if who.many else "was"
    return "are" if who.many else "am" if who.is_i else "is"


def negated(auxiliary: str) -> str:
    """ "isn't" of "is"."""
    odd = {"will": "won't", "can": "can't", "am": "am not", "may": "may not", "might": "might not", "must": "must not"}
    return odd.get(auxiliary) or f"{auxiliary}n't"


def when(draw: Draw, tense: str) -> str:
    kind = "PAST" if "past" in tense else "PRESENT" if tense in ("present", "progressive") else "FUTURE"
    return draw.one(WORDS[f"{kind}_TIMES"])


def _alone(draw: Draw) -> Action:
    what = a_verb(draw, "ALONE")
    after = draw.below(3)
    return Action(what, draw.one(WORDS["MANNER"]) if after == 0 else where(draw) if after == 1 else "")


def _some_hobby(draw: Draw) -> Action:
    kind = draw.below(3)
    if kind == 0:
        return Action(verb("play"), draw.one(WORDS["SPORTS"]))
    if kind == 1:
        return Action(verb("speak/spoke/spoken"), f"{draw.one(WORDS['LANGUAGES'])} {draw.one(WORDS['MANNER'])}")
    return Action(verb("study"), draw.one(WORDS["SUBJECTS"]))


_SIMPLE = (  # actions without another one in them, each as often as it stands here
    _alone, _alone, _with_thing, _with_food, _with_somebody, _with_idea, _toward_thing, _to_place, _giving, _some_hobby,
)  # fmt: skip

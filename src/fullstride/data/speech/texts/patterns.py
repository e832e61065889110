"""Whole sentences of many patterns: statements, questions, commands, lists, comparisons and those of daily matters.

Each takes the random choices and returns a sentence without its capital; PATTERNS lists them by how often they come.
"""

from collections.abc import Callable

from .daily_patterns import counted, dated, made_of, of_body, short, timed, weather
from .inflection import number, verb, with_article
from .phrases import (
    TENSES,
    WORDS,
    Action,
    Draw,
    Subject,
    a_verb,
    action,
    adjective,
    be,
    described,
    finite,
    negated,
    noun,
    person,
    place,
    said,
    statement,
    thing,
    when,
    where,
)

Pattern = Callable[[Draw], str]


def plain(draw: Draw) -> str:
    tense = draw.one(TENSES)
    time = f" {when(draw, tense)}" if draw.chance(30) and "perfect" not in tense else ""
    return f"{statement(draw, person(draw), action(draw), tense, draw.chance(20))}{time}."


def adverbial(draw: Draw) -> str:
    """ "usually, the nurse ...", "the nurse often ..."."""
    what, who = action(draw), person(draw)
    if draw.chance(60):
        return f"{draw.one(WORDS['OPENERS'])}, {statement(draw, who, what, draw.one(TENSES))}."
    tense = draw.one(("past", "present"))
    return f"{who.text} {draw.one(WORDS['FREQUENCY'])} {said(finite(draw, who, what.verb, tense)[1], what)}."


def two_clauses(draw: Draw) -> str:
    tense = draw.one(("past", "present", "past progressive"))
    first = statement(draw, person(draw), action(draw, 1), tense)
    second = statement(draw, person(draw), action(draw, 1), "past" if "past" in tense else "present", draw.chance(15))
    if draw.chance(25):
        return f"{draw.one(('when', 'if', 'although', 'because', 'while', 'as soon as', 'before'))} {first}, {second}."
    joined = draw.one(WORDS["CONJUNCTIONS"])
    return f"{first}{',' if joined in ('but', 'yet', 'so', 'and so') else ''} {joined} {second}."


def condition(draw: Draw) -> str:
    first = statement(draw, person(draw), action(draw, 1), "present")
    return f"if {first}, {statement(draw, person(draw), action(draw, 1), 'future', draw.chance(25))}."


def yes_or_no(draw: Draw) -> str:
    who, what, tense = person(draw), action(draw, 1), draw.one(TENSES)
    auxiliary, main = finite(draw, who, what.verb, tense, apart=True)
    if draw.chance(20) and auxiliary not in ("am", "may", "might", "must"):
        auxiliary = negated(auxiliary)
    return f"{auxiliary} {who.text} {said(main, what)}?"


def asked(draw: Draw) -> str:
    who, what, tense = person(draw), action(draw, 1), draw.one(TENSES)
    if draw.chance(25):
        whose = f"whose {noun(draw, 'PEOPLE')}"
        asker = Subject(draw.one(("who", "who else", "which of them", "what kind of person", whose)))
        return f"{statement(draw, asker, what, tense)}?"
    auxiliary, main = finite(draw, who, what.verb, tense, apart=True)
    word = draw.one(("why", "when", "where", "how", "how often", "since when", "with whom", "how soon", "at what time"))
    return f"{word} {auxiliary} {who.text} {said(main, what)}?"


def what_asked(draw: Draw) -> str:
    who, tense = person(draw), draw.one(TENSES)
    kinds = {"THING": "THINGS", "FOOD": "FOODS", "IDEA": "IDEAS", "PERSON": "PEOPLE"}
    kind = draw.one(tuple(kinds))
    what = a_verb(draw, kind)
    auxiliary, main = finite(draw, who, what, tense, apart=True)
    asked_for = noun(draw, kinds[kind], draw.chance(50))
    word = draw.one(("which", "what", "how many")) if draw.chance(60) else ""
    if word == "how many":
        asked_for = noun(draw, kinds[kind], many=True)
    object_ = f"{word} {asked_for}" if word else "whom" if kind == "PERSON" else "what"
    return " ".join(part for part in (object_, auxiliary, who.text, main, what.particle) if part) + "?"


def command(draw: Draw) -> str:
    name = draw.one(WORDS["NAMES"])
    after = draw.one(("", "", "", ", please", " right now", " at once", " for a while", " again", f", {name}"))
    if draw.chance(20):
        gift = thing(draw, draw.one(("THINGS", "FOODS", "FOOD_MASS", "DRINK_MASS")))[0]
        return f"{a_verb(draw, 'GIVING').base} {draw.one(('me', 'us'))} {gift}{after}."
    what = action(draw, 1)
    begun = draw.one((
        "please", "", "don't", "do not", "let us", "let's", "never", "you had better", "always", "try to",
    ))  # fmt: skip
    return f"{begun} {said(what.verb.base, what)}{after if begun != 'please' else ''}.".strip()


def request(draw: Draw) -> str:
    what = action(draw, 1)
    begun = draw.one((
        "could you", "would you please", "can you", "will you", "may I", "shall we", "why don't you", "why not",
        "do you want me to", "would you like to", "are you ready to", "is it possible to", "is it all right to",
    ))  # fmt: skip
    return f"{begun} {said(what.verb.base, what)}?"


def there_is(draw: Draw) -> str:
    kind = draw.one((
        "THINGS", "ANIMALS", "FOODS", "VEHICLES", "PEOPLE", "NATURE", "FOOD_MASS", "MATERIAL_MASS", "DRINK_MASS",
    ))  # fmt: skip
    if kind.endswith("MASS"):
        amount = draw.one(("some", "no", "a lot of", "too much", "not enough", "plenty of", "hardly any"))
        return f"there {draw.one(('is', 'was'))} {amount} {described(draw, kind)} {where(draw)}."
    if draw.chance(50):
        return f"there {draw.one(('is', 'was'))} {with_article(described(draw, kind))} {where(draw)}."
    count = draw.one(("some", "no", "two", "several", "many", number(3 + draw.below(60)), "hundreds of"))
    return f"there {draw.one(('are', 'were'))} {count} {described(draw, kind, True)} {where(draw)}."


def describing(draw: Draw) -> str:
    """Something is so, looks so, or became so."""
    kind = draw.one(("PEOPLE", "ANIMALS", "THINGS", "PLACES", "IDEAS", "FOODS", "FOOD_MASS", "IDEA_MASS", "DRINK_MASS"))
    text, many = thing(draw, kind, definite=True)
    who = person(draw) if kind == "PEOPLE" and draw.chance(50) else Subject(text, many)
    how = adjective(draw, kind)
    if draw.chance(50):
        how = f"{draw.one(WORDS['DEGREE'])} {how}"
    elif draw.chance(30):
        how = f"{how} and {adjective(draw, kind)}"
    if draw.chance(60):
        past = draw.chance(50)
        return f"{who.text} {be(who, past)} {'not ' if draw.chance(20) else ''}{how}."
    seems = draw.one(("seem", "look", "sound", "become/became/become", "remain", "appear", "feel/felt/felt", "stay"))
    return f"{who.text} {finite(draw, who, verb(seems), draw.one(('past', 'present')))[1]} {how}."


def compared(draw: Draw) -> str:
    base, more, most = draw.one(WORDS["COMPARED"]).split("/")
    kind = draw.one(("PEOPLE", "ANIMALS", "THINGS", "PLACES", "FOODS", "IDEAS", "VEHICLES"))
    text, many = thing(draw, kind, definite=True)
    other = thing(draw, kind, definite=True)[0]
    verb_be = be(Subject(text, many), draw.chance(40))
    choice = draw.below(4)
    if choice == 0:
        return f"{text} {verb_be} {draw.one(('', 'much ', 'a little ', 'even ', 'far '))}{more} than {other}."
    if choice == 1:
        return f"{text} {verb_be} {draw.one(('', 'not ', 'almost ', 'nearly '))}as {base} as {other}."
    if choice == 2:
        return f"{draw.one(('this', 'that', 'it', 'here'))} is the {most} {noun(draw, kind)} in {place(draw)}."
    return f"who has the {most} {noun(draw, kind)} of all?"


def passive(draw: Draw) -> str:
    kind, objects = (("THING", "THINGS"), ("FOOD", "FOODS"), ("PERSON", "PEOPLE"), ("IDEA", "IDEAS"))[draw.below(4)]
    text, many = thing(draw, objects, definite=True)
    what, who = a_verb(draw, kind), Subject(text, many)
    passive_be = draw.one((be(who, True), be(who), "will be", "must be", "had been", "can be", "should be", "has been"))
    if passive_be == "has been" and many:
        passive_be = "have been"
    done = f"{what.participle} {what.particle}".strip()
    by = f" by {draw.one(WORDS['NAMES']) if draw.chance(20) else thing(draw, 'PEOPLE')[0]}" if draw.chance(55) else ""
    return f"{text} {passive_be} {done}{by}{'' if by else ' ' + draw.one(WORDS['MANNER'])}."


def listed(draw: Draw) -> str:
    kind = draw.one(("THINGS", "FOODS", "ANIMALS", "VEHICLES", "FOOD_MASS"))
    if kind == "FOOD_MASS":
        measures = (f"{with_article(noun(draw, 'MEASURES'))} of {noun(draw, kind)}" for _ in range(3))
    else:
        measures = (thing(draw, kind)[0] for _ in range(3))
    first, second, third = measures
    what = verb(draw.one(("buy/bought/bought", "see/saw/seen", "want", "find/found/found", "need", "draw/drew/drawn")))
    who = person(draw)
    return f"{who.text} {finite(draw, who, what, draw.one(('past', 'present')))[1]} {first}, {second} and {third}."


def relative(draw: Draw) -> str:
    one, first, second = noun(draw, "PEOPLE"), action(draw, 1), action(draw, 1)
    who = Subject("who")
    return f"the {one} {statement(draw, who, first, draw.one(('past', 'present', 'past progressive')))} " + (
        f"{said(second.verb.past, second)}."
    )


def of_animals(draw: Draw) -> str:
    text, many = thing(draw, "ANIMALS")
    who, tense = Subject(text, many), draw.one(TENSES)
    after = where(draw) if draw.chance(60) else draw.one(WORDS["MANNER"])
    return f"{statement(draw, who, Action(a_verb(draw, 'ANIMAL_ALONE'), after), tense)}."


def of_things(draw: Draw) -> str:
    kind = draw.one(("THINGS", "NATURE", "VEHICLES"))
    text, many = thing(draw, kind, definite=True)
    after = where(draw) if draw.chance(40) else draw.one(WORDS["MANNER"])
    what = Action(a_verb(draw, "NATURE_ALONE" if kind == "NATURE" else "THING_ALONE"), after)
    return f"{statement(draw, Subject(text, many), what, draw.one(TENSES))}."


def exclaimed(draw: Draw) -> str:
    kind = draw.one(("THINGS", "IDEAS", "PLACES", "ANIMALS", "PEOPLE", "FOODS"))
    if draw.chance(60):
        return f"what {with_article(described(draw, kind, percent=100))}!"
    text, many = thing(draw, kind, definite=True)
    return f"how {adjective(draw, kind)} {text} {be(Subject(text, many), draw.chance(50))}!"


def judged(draw: Draw) -> str:
    what = action(draw, 1)
    how = adjective(draw, "IDEAS")
    choice = draw.below(4)
    if choice == 0:
        return f"it {draw.one(('is', 'was', 'would be', 'seems'))} {how} to {said(what.verb.base, what)}."
    if choice == 1:
        return f"{said(what.verb.gerund, what)} {draw.one(('is', 'was', 'can be'))} {draw.one(WORDS['DEGREE'])} {how}."
    if choice == 2:
        spell = f"{number(2 + draw.below(58))} {draw.one(('minutes', 'hours', 'days', 'weeks', 'seconds', 'months'))}"
        return f"it {draw.one(('takes', 'took'))} {spell} to {said(what.verb.base, what)}."
    must = draw.one(("used to", "ought to", "have to", "had to"))
    return f"{draw.one(WORDS['NAMES'])} and I {must} {said(what.verb.base, what)}."


PATTERNS: tuple[Pattern, ...] = (
    plain, plain, plain, plain, adverbial, adverbial, two_clauses, two_clauses, condition, yes_or_no, asked, what_asked,
    command, request, there_is, there_is, describing, describing, compared, passive, passive, listed, listed, relative,
    of_animals, of_things, of_things, weather, dated, timed, counted, counted, exclaimed, judged, of_body, made_of,
    short,
)  # fmt: skip

"""Sentences of everyday matters, by patterns of their own: weather, dates, times, numbers, materials, small talk."""

from ....speech.number_words import ordinal
from .inflection import number, with_article, year
from .phrases import (
    TENSES,
    WORDS,
    Draw,
    action,
    adjective,
    described,
    noun,
    one_and_many,
    person,
    statement,
    where,
)


def weather(draw: Draw) -> str:
    how, also = draw.one(WORDS["WEATHER"]), draw.one(WORDS["WEATHER"])
    where_ = f" in {draw.one(WORDS['CITIES'])}" if draw.chance(50) else ""
    choice = draw.below(4)
    if choice == 0:
        return f"it will be {how} and {also}{where_} {draw.one(WORDS['FUTURE_TIMES'])}."
    if choice == 1:
        return f"it was {draw.one(WORDS['DEGREE'])} {how}{where_} {draw.one(WORDS['PAST_TIMES'])}."
    if choice == 2:
        return f"the {draw.one(WORDS['MONTHS'])} weather{where_} is often {how}, but never {also}."
    degrees = number(draw.below(41))
    return f"the temperature{where_} {draw.one(('rose', 'fell', 'dropped', 'climbed'))} to {degrees} degrees."


def _date(draw: Draw) -> str:
    month, day = draw.one(WORDS["MONTHS"]), ordinal(1 + draw.below(31 if draw.chance(50) else 28))
    day = ordinal(1 + draw.below(28)) if month == "February" else day
    day = "thirtieth" if day == "thirty first" and month in ("April", "June", "September", "November") else day
    return f"{month} {day}" if draw.chance(50) else f"the {day} of {month}"


def dated(draw: Draw) -> str:
    what = action(draw, 1)
    choice = draw.below(4)
    if choice == 0:
        return f"{draw.one(WORDS['NAMES'])} was born on {_date(draw)}, {year(1900 + draw.below(120))}."
    if choice == 1:
        done = draw.one(("built", "opened", "closed", "destroyed"))
        return f"the {noun(draw, 'PLACES')} was {done} in {year(1100 + draw.below(920))}."
    if choice == 2:
        return f"on {draw.one(WORDS['DAYS'])}, {_date(draw)}, {statement(draw, person(draw), what, 'future')}."
    return f"the {noun(draw, 'IDEAS')} {draw.one(('begins', 'ends', 'takes place'))} on {_date(draw)}."


def timed(draw: Draw) -> str:
    hour = number(1 + draw.below(12))
    minutes = number(5 + 5 * draw.below(4))
    time = draw.one((
        f"{hour} o'clock", f"half past {hour}", f"a quarter to {hour}", f"{minutes} past {hour}",
        f"{minutes} to {hour}", f"{hour} {number(10 + draw.below(50))}", f"{hour} in the morning", "noon",
    ))  # fmt: skip
    choice = draw.below(3)
    if choice == 0:
        goes = draw.one(("leaves", "departs", "goes"))
        return f"the {noun(draw, 'VEHICLES')} to {draw.one(WORDS['CITIES'])} {goes} at {time}."
    if choice == 1:
        return f"{statement(draw, person(draw), action(draw, 1), draw.one(('past', 'future', 'going to')))} at {time}."
    return f"the {noun(draw, 'PLACES')} {draw.one(('opens', 'closes'))} at {time} on {draw.one(WORDS['DAYS'])}."


def counted(draw: Draw) -> str:
    first, second = draw.below(100), draw.below(100)
    small, middle = number(2 + draw.below(19)), number(20 + draw.below(980))
    large = number(1000 * (1 + draw.below(99)) + (draw.below(1000) if draw.chance(40) else 0))
    one, many = one_and_many(draw, "THINGS")
    name, city = draw.one(WORDS["NAMES"]), draw.one(WORDS["CITIES"])
    return draw.one((
        f"the {adjective(draw, 'THINGS')} {one} costs {middle} dollars.",
        f"{name} paid {small} dollars and {number(1 + draw.below(99))} cents for {with_article(one)}.",
        f"{large} people live near the {noun(draw, 'PLACES')}.",
        f"it is {middle} miles from {city} to {draw.one(WORDS['CITIES'])}.",
        f"{name} is {number(20 + draw.below(75))} years old and has {small} {noun(draw, 'PEOPLE', True)}.",
        f"{number(first)} plus {number(second)} is {number(first + second)}.",
        f"about {number(1 + draw.below(99))} percent of the {noun(draw, 'PEOPLE', True)} agreed.",
        f"they counted {middle} {noun(draw, 'ANIMALS', True)} in {city}.",
        f"the {ordinal(1 + draw.below(99))} {one} on the list is {draw.one(WORDS['COLORS'])}.",
        f"please turn to page {middle}.",
        f"the answer to question {small} is {number(draw.below(1000))}.",
        f"{small} out of {number(21 + draw.below(79))} {noun(draw, 'PEOPLE', True)} own {with_article(one)}.",
        f"we need {small} more {noun(draw, 'FOODS', True)} and {number(second + 2)} {noun(draw, 'MEASURES', True)}.",
        f"the factory makes {large} {many} {draw.one(('a week', 'a day', 'every year'))}.",
    ))  # fmt: skip


def of_body(draw: Draw) -> str:
    part, large = noun(draw, "BODY"), draw.one(("big", "small", "strong", "cold"))
    his = draw.one(("my", "your", "his", "her", "their", "our"))
    return draw.one((
        f"{his} {part} {draw.one(('hurts', 'itches', 'aches', 'feels better', 'is swollen'))}.",
        f"{person(draw).text} will touch {his} {part} and {his} {noun(draw, 'BODY')}.",
        f"the {noun(draw, 'PEOPLE')} with the {large} {part} has {with_article(adjective(draw, 'PEOPLE'))} face.",
        f"{draw.one(WORDS['NAMES'])} hurt {his} {part} {draw.one(WORDS['PAST_TIMES'])}.",
    ))  # fmt: skip


def made_of(draw: Draw) -> str:
    one, of = described(draw, "THINGS"), noun(draw, "MATERIAL_MASS")
    return draw.one((
        f"the {one} is made of {of} and {noun(draw, 'MATERIAL_MASS')}.",
        f"{draw.one(('his', 'her', 'our', 'their'))} {one} was covered with {of}.",
        f"{draw.one(WORDS['NAMES'])} filled the {noun(draw, 'THINGS')} with {of}.",
        f"is this {one} made of {of}?",
        f"nobody wanted the {of} {where(draw)}.",
    ))  # fmt: skip


def short(draw: Draw) -> str:
    name = draw.one(WORDS["NAMES"])
    return draw.one((
        f"good {draw.one(('morning', 'evening', 'afternoon', 'night'))}, {name}.",
        f"thank you for the {noun(draw, 'THINGS')}, {name}.",
        f"how are you {draw.one(('today', 'this morning', 'now'))}, {name}?",
        f"my name is {name}.",
        f"this is {name}'s {noun(draw, 'THINGS')}.",
        f"I beg your pardon, {name}.",
        f"where is the {noun(draw, 'PLACES')}?",
        f"{name} came from {draw.one(WORDS['CITIES'])}.",
        f"welcome to {draw.one(WORDS['CITIES'])}, {name}!",
        f"here comes the {noun(draw, 'VEHICLES')}!",
        f"yes, {statement(draw, person(draw), action(draw, 1), draw.one(TENSES))}.",
        f"no, {statement(draw, person(draw), action(draw, 1), draw.one(TENSES), True)}.",
        f"well, {statement(draw, person(draw), action(draw, 1), draw.one(TENSES))}.",
        f"happy birthday to the {noun(draw, 'PEOPLE')}!",
        f"{name} prefers {noun(draw, 'DRINK_MASS')} to {noun(draw, 'DRINK_MASS')}.",
        f"neither {name} nor the {noun(draw, 'PEOPLE')} drinks {noun(draw, 'DRINK_MASS')}.",
        f"either the {noun(draw, 'ANIMALS')} or the {noun(draw, 'ANIMALS')} did it.",
    ))  # fmt: skip

"""English forms by rule: plurals, verbs, "a" and "an", numbers as words. What has no rule is listed with the word."""

from dataclasses import dataclass

from ....speech import number_words

_SOUNDS_VOWEL = ("heir", "honest", "honor", "hour")
_SOUNDS_CONSONANT = ("eu", "ewe", "one", "once", "uni", "use", "usu", "ut")  # begin with the sound of "you" or "won"
_STILL_VOWEL = ("unim", "unin")  # "unimportant", "uninteresting"


@dataclass(frozen=True)
class Verb:
    base: str
    third: str
    past: str
    participle: str
    gerund: str
    particle: str = ""  # "at" of "look at", which stays as it is


def verb(entry: str) -> Verb:
    """From an entry of verbs.py, where the ways to write one are explained."""
    first, *irregular = entry.split("/")
    base, _, particle = first.replace("+", "").partition("_")
    stem = base + base[-1] if "+" in first else base
    regular = base + "d" if base.endswith("e") else base[:-1] + "ied" if _consonant_y(base) else stem + "ed"
    past, participle = irregular[:2] if irregular else (regular, regular)
    gerund = irregular[2] if len(irregular) > 2 else _gerund(base, stem)
    return Verb(base, with_s(base), past, participle, gerund, particle.replace("_", " "))


def plural(entry: str) -> tuple[str, str]:
    """(singular, plural) of an entry of nouns.py."""
    one, _, many = entry.partition("/")
    return one.replace("_", " "), (many or with_s(one)).replace("_", " ")


def with_s(word: str) -> str:
    """Of a noun in the plural and of a verb in the third person, for both have the same rule."""
    if _consonant_y(word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "z", "go", "do")) else "s")


def with_article(phrase: str) -> str:
    """With "a" or "an" before it, by the sound that it begins with."""
    word = phrase.lower()
    consonant = word.startswith(_SOUNDS_CONSONANT) and not word.startswith(_STILL_VOWEL)
    vowel = word.startswith(_SOUNDS_VOWEL) or (word[0] in "aeiou" and not consonant)
    return ("an " if vowel else "a ") + phrase


def number(value: int) -> str:
    """From 0 to 999,999, as it is said: "two hundred and five"."""
    if not 0 <= value < 1_000_000:
        raise ValueError(f"expected a number from 0 to 999999, got {value}")
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if value >= size:
            joined = " and " if value % size < 100 else " "
            return f"{number(value // size)} {name}" + (joined + number(value % size) if value % size else "")
    return number_words.cardinal(value)


def year(value: int) -> str:
    """From 1100 to 1999 by hundreds, from 2000 on as a number."""
    return number(value) if value >= 2000 else number_words.year(value)


def _consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def _gerund(base: str, stem: str) -> str:
    if base.endswith("e") and not base.endswith(("ee", "oe", "ye")):
        return base[:-1] + "ing"
    return stem + "ing"

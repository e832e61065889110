"""Text as it is said: plain words and the punctuation . , ? ! ; : that pauses are made of.

    normalise("Dr. Smith paid $5.50 at 5:30.").text
    == "Doctor Smith paid five dollars and fifty cents at five thirty."
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from .abbreviations import MONTHS, expand_initials, expand_units, expand_words
from .characters import to_ascii
from .number_words import cardinal, count, decade, decimal, digits, fraction, ordinal, roman, year

_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "\u20ac": ("euro", "euros", "cent", "cents"),
    "\u00a3": ("pound", "pounds", "penny", "pence"),
    "\u00a5": ("yen", "yen", "sen", "sen"),
}
_LARGE = {"k": "thousand", "K": "thousand", "M": "million", "m": "million", "bn": "billion", "B": "billion"}
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_MONTH = "|".join(MONTHS)
_COUNTED = (  # I after these is a number; after a name like Henry only what no pronoun can be
    "Chapter|Part|Book|Volume|Act|Scene|Section|Article|Appendix|World War|Phase|Type|Class|Stage|Level|Episode|Figure"
)
_RULERS = (
    "Henry|Louis|George|Edward|Richard|Charles|James|William|Elizabeth|Mary|Philip|Frederick|Napoleon|Pius|Benedict|"
    "Alexander|Nicholas|Francis|Leo|Gregory|Catherine|Peter|Paul|John|Ivan|Otto|Ferdinand|Wilhelm|Friedrich"
)
_SYMBOLS = (
    (r"\s*&\s*", " and "),
    (r"\s*@\s*", " at "),
    (r"\s*==?\s*", " equals "),
    (r"\s*<=\s*", " is at most "),
    (r"\s*>=\s*", " is at least "),
    (r"\s*<\s*", " less than "),
    (r"\s*>\s*", " greater than "),
    (r"(?<=\w)\s*\+(?=\W|$)(?!\s*\w)", " plus "),
    (r"\s*\+\s*", " plus "),
    (r"\s*/\s*", " slash "),
    (r"\s*%", " percent"),
    (r"\s*\\\s*", " backslash "),
    (r"#\s*", " hash "),
    (r"~\s*(?=\w)", "about "),
    (r"[*_`^~]+", " "),
    (r"\|", ", "),
)


@dataclass(frozen=True)
class Normalised:
    """Words to say, and the characters that had no likeness in ASCII and are left out, each once."""

    text: str
    dropped: tuple[str, ...]


def normalise(text: str) -> Normalised:
    """What a reader would say. Text with nothing to say is refused."""
    plain, dropped = to_ascii(text, keep="\n" + "".join(_CURRENCIES))
    for step in (_marks, _addresses, expand_words, _dates, _phones, _money, _times, expand_units, _romans, _numbers):
        plain = step(plain)
    said = _tidy(_symbols(expand_initials(plain)))
    if not any(letter.isalpha() for letter in said):
        told = f"; nothing is known of {' '.join(dropped[:8])}" if dropped else ""
        raise ValueError(f"expected text with words to say, got {text[:60]!r}{told}; give at least one word or number")
    return Normalised(said, dropped)


def _marks(text: str) -> str:
    """Pauses: brackets, dashes, dots. Long runs, which the patterns to come would be slow on, end here."""
    text = re.sub(r"[^\S\n]+", " ", text)
    text = re.sub(r"([^\w\s])\1{3,}", r"\1\1\1", text)
    text = re.sub(r"\d{19,}", lambda found: f" {digits(found[0])} ", text)
    text = re.sub(r"\.{3,}(?=\s*$|\s+[A-Z])", ".", text)
    text = re.sub(r"\.{2,}", ", ", text)
    text = re.sub(r"\((\d{3})\)(?=\s*\d{3})", r"\1", text)  # of a phone number
    text = re.sub(r"[()\[\]{}]", ", ", text)
    text = re.sub(r"--+", ", ", text)
    text = re.sub(r"(?<=[^\d\s])\s+-\s+|\s+-\s+(?=\D)", ", ", text)
    return text.replace('"', " ")


def _addresses(text: str) -> str:
    """ann@example.com -> ann at example dot com"""
    text = re.sub(r"https?://", "", text)
    ending = r"(?:com|org|net|edu|gov|io|dev|ai|co|uk|de|fr|eu|info)"
    address = re.compile(rf"(?:[\w.+-]{{1,64}}@)?\b(?:[A-Za-z][\w-]{{,62}}\.)+{ending}\b(?:/[\w/.-]*\w)?")
    read = {"@": " at ", ".": " dot ", "/": " slash ", "-": " dash ", "_": " underscore "}
    text = address.sub(lambda found: re.sub(r"[@./_-]", lambda mark: read[mark[0]], found[0]), text)
    return re.sub(r"\bwww\b", "W W W", text)


def _dates(text: str) -> str:
    text = re.sub(r"\b(\d{4})-(0?[1-9]|1[0-2])-(0?[1-9]|[12]\d|3[01])\b", _iso_date, text)
    day = r"(0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
    text = re.sub(
        rf"\b({_MONTH}) {day}(?![\d:.]\d|\d|%)", lambda found: f"{found[1]} {ordinal(int(found[2]))}", text
    )
    text = re.sub(rf"\b{day} ({_MONTH})\b", lambda found: f"{ordinal(int(found[1]))} {found[2]}", text)
    text = re.sub(r"(?<![\w$.,])(\d{3}0|'?\d0)'?s\b", lambda found: decade(int(found[1].lstrip("'"))), text)
    span = r"(?<![\w$.,-])(1[1-9]\d\d|20\d\d)\s?-\s?(1[1-9]\d\d|20\d\d|\d\d)(?![\w-])(?!\s*=)"
    return re.sub(span, lambda found: f"{year(int(found[1]))} to {year(int(found[2]))}", text)


def _iso_date(found: re.Match[str]) -> str:
    return f"{MONTHS[int(found[2]) - 1]} {ordinal(int(found[3]))}, {year(int(found[1]))}"


def _phones(text: str) -> str:
    """555-123-4567 in its groups, each digit by itself."""
    phone = r"(?<![\w.-])(\+?\d{1,3}[ .-])?(?:\d{3}[ .-])?\d{3}[.-]\d{4}(?![\w-])"

    def said(found: re.Match[str]) -> str:
        groups = [digits(group) for group in re.split(r"[ .-]", found[0].lstrip("+"))]
        return ("plus " if found[0].startswith("+") else "") + ", ".join(groups)

    return re.sub(phone, said, text)


def _money(text: str) -> str:
    sign = "".join(map(re.escape, _CURRENCIES))
    large = r"(?:\s?(thousand|million|billion|trillion|bn|[kKMBm])(?!\w))?"
    text = re.sub(rf"(-?)([{sign}])\s?({_NUMBER}){large}", lambda found: _amount(*found.groups()), text)
    behind = rf"(-?)({_NUMBER})\s?([{sign}])"
    return re.sub(behind, lambda found: _amount(found[1], found[3], found[2]), text)


def _amount(minus: str, sign: str, number: str, large: str | None = None) -> str:
    one, many, cent, cents = _CURRENCIES[sign]
    minus = "minus " if minus else ""
    if large:
        return f"{minus}{decimal(number)} {_LARGE.get(large, large)} {many}"
    whole, _, part = number.replace(",", "").partition(".")
    if len(part) not in (0, 2):
        return f"{minus}{decimal(number)} {many}"
    said = []
    if whole.strip("0") or not part.strip("0"):
        said.append(f"{count(whole)} {one if whole == '1' else many}")
    if part.strip("0"):
        said.append(f"{cardinal(int(part))} {cent if int(part) == 1 else cents}")
    return minus + " and ".join(said)


def _times(text: str) -> str:
    """5:30 -> five thirty, 5:05 -> five oh five, 5:00 -> five o'clock"""

    def said(found: re.Match[str]) -> str:
        hour, minute, second, half = found[1], int(found[2]), found[3], found[4]
        words = cardinal(int(hour))
        if minute:
            words += f" oh {cardinal(minute)}" if minute < 10 else f" {cardinal(minute)}"
        elif not half and not second:
            words += " o'clock" if 0 < int(hour) <= 12 else " hundred"
        if second:
            words += f" and {cardinal(int(second))} seconds"
        return f"{words} {half}" if half else words

    time = r"(?<![\w.:])([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?(?:\s+(eigh M|P M))?(?![\w:])"
    return re.sub(time, said, text)


def _romans(text: str) -> str:
    def counted(found: re.Match[str]) -> str:
        number = roman(found[2])
        return found[0] if number is None else f"{found[1]} {cardinal(number)}"

    def ruler(found: re.Match[str]) -> str:
        number = roman(found[2])
        return found[0] if number is None else f"{found[1]} the {ordinal(number)}"

    text = re.sub(rf"\b({_COUNTED}) ([IVXLC]+)\b", counted, text)
    return re.sub(rf"\b({_RULERS}) ((?!I\b(?:\s+[a-z]|'))[IVXLC]+)\b", ruler, text)


def _numbers(text: str) -> str:
    """All that is left of digits, the longest forms first."""
    rules: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
        (r"#\s?(?=\d)", lambda found: "number "),
        (r"~\s?(?=\d)", lambda found: "about "),
        (rf"({_NUMBER})\s?%", lambda found: f"{decimal(found[1])} percent"),
        (r"\b(\d[\d,]{0,15})(?:st|nd|rd|th)\b", lambda found: ordinal(int(found[1].replace(",", "")))),
        (r"\b\d+(?:\.\d+){2,}\b", lambda found: " point ".join(decimal(part) for part in found[0].split("."))),
        (r"\b(\d{1,9})\s+(\d{1,3})/(\d{1,4})\b(?!/)", _mixed),
        (r"(?<![\w/.])(\d{1,3})/(\d{1,4})\b(?![/\w])", _fraction),
        (r"(?<=[A-Za-z])\^2\b", lambda found: " squared"),
        (r"(?<=[A-Za-z])\^3\b", lambda found: " cubed"),
        (r"(?<=\d)\s*[x*]\s*(?=\d)", lambda found: " times "),
        (r"(?<=\w)\s*\^\s*(?=\w)", lambda found: " to the power of "),
        (r"(?<=\d)\s+-\s*(?=\d)", lambda found: " minus "),
        (r"(?<=\d)-(?=\d)|(?<= M)-(?=\d)", lambda found: " to "),
        (r"(?<![\w.)])-\s?(?=\.?\d)", lambda found: "minus "),
        (r"(?<=[A-Za-z])-?(?=\d)", lambda found: " "),  # A4, GPT-2
        (rf"{_NUMBER}", _number),
    )
    for pattern, said in rules:
        text = re.sub(pattern, said, text)
    return text


def _fraction(found: re.Match[str]) -> str:
    upper, lower = int(found[1]), int(found[2])
    return f"{cardinal(upper)} {cardinal(lower)}" if upper >= lower > 0 else fraction(upper, lower)  # 24/7


def _mixed(found: re.Match[str]) -> str:
    part = fraction(int(found[2]), int(found[3]))
    return f"{cardinal(int(found[1]))} and {'a' + part[3:] if part.startswith('one ') else part}"


def _number(found: re.Match[str]) -> str:
    number, after = found[0], found.string[found.end() : found.end() + 1]
    if number.isdigit() and ((len(number) > 1 and number[0] == "0") or len(number) > 12):
        said = digits(number)
    elif number.isdigit() and len(number) == 4 and 1100 <= int(number) < 2100:
        said = year(int(number))
    else:
        said = decimal(number)
    return f"{said} " if after.isalpha() else said


def _symbols(text: str) -> str:
    text = re.sub(r"\b(and)/(or)\b", r"\1 \2", text)
    for sign, (one, *_) in _CURRENCIES.items():
        text = text.replace(sign, f" {one} ")
    for pattern, said in _SYMBOLS:
        text = re.sub(pattern, said, text)
    return text


def _tidy(text: str) -> str:
    """Single spaces, one mark at a time, none at the beginning."""
    text = re.sub(r"\n+", " ", re.sub(r"(?<=\w)\s*\n\s*(?=\S)", ", ", text.strip()))
    text = re.sub(r"(?<![A-Za-z])'|'(?![A-Za-z])", " ", text)  # quotes; the apostrophe within a word stays
    text = re.sub(r"[^A-Za-z' .,?!;:]+", " ", text)
    text = re.sub(r"\s+(?=[.,?!;:])", "", re.sub(r"\s+", " ", text))
    text = re.sub(r"[.,?!;:]{2,}", lambda found: next((m for m in "?!.;:" if m in found[0]), ","), text)
    text = re.sub(r"(?<=[.,?!;:])(?=[A-Za-z])", " ", text)
    return text.lstrip(" .,?!;:").strip()

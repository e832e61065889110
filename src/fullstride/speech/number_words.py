"""Numbers as English words, without "and" and without hyphens: 121 is one hundred twenty one."""

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GROUPS = ("", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def cardinal(number: int) -> str:
    """3021 -> three thousand twenty one. From 10^21 on, which nobody has a word for, digit by digit."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number < 20:
        return _ONES[number]
    if number < 100:
        ones = number % 10
        return _TENS[number // 10] + (f" {_ONES[ones]}" if ones else "")
    if number < 1000:
        return f"{_ONES[number // 100]} hundred" + _rest(number % 100)
    for power in range(1, len(_GROUPS)):
        unit = 1000**power
        if number < unit * 1000:
            return f"{cardinal(number // unit)} {_GROUPS[power]}" + _rest(number % unit)
    return digits(str(number))


def count(text: str) -> str:
    """A whole number given in digits, however many."""
    return digits(text) if len(text) > 3 * len(_GROUPS) else cardinal(int(text or "0"))


def ordinal(number: int) -> str:
    """21 -> twenty first"""
    head, _, last = cardinal(number).rpartition(" ")
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return f"{head} {_ORDINALS.get(last, regular)}".strip()


def year(number: int) -> str:
    """1999 -> nineteen ninety nine, 1905 -> nineteen oh five, 1900 -> nineteen hundred, 2005 -> two thousand five"""
    century, rest = divmod(number, 100)
    if not 11 <= century <= 99 or (century % 10 == 0 and rest < 10):
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} " + (f"oh {_ONES[rest]}" if rest < 10 else cardinal(rest))


def decade(number: int) -> str:
    """1990 -> nineteen nineties, 90 -> nineties, 1900 -> nineteen hundreds"""
    words = year(number) if number >= 1000 else cardinal(number)
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def digits(text: str) -> str:
    """007 -> zero zero seven"""
    return " ".join(_ONES[int(digit)] for digit in text if digit.isdigit())


def decimal(text: str) -> str:
    """1,234.50 -> one thousand two hundred thirty four point five zero; .5 -> zero point five; -3 -> minus three"""
    sign, text = ("minus ", text[1:]) if text.startswith("-") else ("", text)
    whole, _, fraction = text.replace(",", "").partition(".")
    words = digits(whole) if len(whole) > 1 and whole[0] == "0" else count(whole)
    return sign + words + (f" point {digits(fraction)}" if fraction else "")


def fraction(numerator: int, denominator: int) -> str:
    """3, 4 -> three quarters"""
    names = {2: "half", 4: "quarter"}
    if denominator == 0 or denominator == 1:
        return f"{cardinal(numerator)} over {cardinal(denominator)}"
    name = names.get(denominator) or ordinal(denominator)
    if numerator == 1:
        return f"one {name}"
    return f"{cardinal(numerator)} " + ("halves" if denominator == 2 else f"{name}s")


def roman(text: str) -> int | None:
    """XIV -> 14; None if it is not written as the Romans did."""
    values = [_ROMAN[letter] for letter in text]
    number = sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
    return number if number > 0 and _to_roman(number) == text else None


def _to_roman(number: int) -> str:
    parts = []
    steps = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"))
    for value, name in (*steps, (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        count, number = divmod(number, value)
        parts.append(name * count)
    return "".join(parts)


def _rest(number: int) -> str:
    return f" {cardinal(number)}" if number else ""

import pytest

from fullstride.speech.normalise import normalise

SAID = {
    # cardinals
    "0": "zero",
    "I have 21 cats.": "I have twenty one cats.",
    "100": "one hundred",
    "121 men": "one hundred twenty one men",
    "1,000,000 ants": "one million ants",
    "12,345": "twelve thousand three hundred forty five",
    "3021": "three thousand twenty one",
    "1000": "one thousand",
    # ordinals
    "the 1st, 2nd and 3rd": "the first, second and third",
    "the 12th man": "the twelfth man",
    "21st": "twenty first",
    "the 100th": "the one hundredth",
    "30th": "thirtieth",
    # decimals, signs
    "3.14": "three point one four",
    "It costs .5 more.": "It costs zero point five more.",
    "-5 outside": "minus five outside",
    "from -3.5 to 4": "from minus three point five to four",
    "\u22127": "minus seven",
    # fractions
    "1/2": "one half",
    "3/4 cup": "three quarters cup",
    "2 1/2 hours": "two and a half hours",
    "2\u00bd hours": "two and a half hours",
    "2/3": "two thirds",
    "open 24/7": "open twenty four seven",
    # percent, money
    "5% of 100": "five percent of one hundred",
    "3.5 %": "three point five percent",
    "$5": "five dollars",
    "$1": "one dollar",
    "$5.50.": "five dollars and fifty cents.",
    "$0.99": "ninety nine cents",
    "$1,200": "one thousand two hundred dollars",
    "$3.5 million": "three point five million dollars",
    "$20k": "twenty thousand dollars",
    "\u00a320": "twenty pounds",
    "\u20ac1.01": "one euro and one cent",
    "20\u20ac": "twenty euros",
    "-$5": "minus five dollars",
    "-20\u20ac": "minus twenty euros",
    # years, dates
    "in 1999": "in nineteen ninety nine",
    "in 1905": "in nineteen oh five",
    "in 1900": "in nineteen hundred",
    "in 2005": "in two thousand five",
    "in 2024": "in twenty twenty four",
    "the 1990s": "the nineteen nineties",
    "the '80s": "the eighties",
    "1914-1918": "nineteen fourteen to nineteen eighteen",
    "2024-05-17": "May seventeenth, twenty twenty four",
    "May 5, 1999": "May fifth, nineteen ninety nine",
    "Jan. 3": "January third",
    "on Mon. we go": "on Monday we go",
    "4 July 1776": "fourth July seventeen seventy six",
    # times
    "at 5:30": "at five thirty",
    "at 5:05 p.m.": "at five oh five P M.",
    "at 5:00": "at five o'clock",
    "12:00": "twelve o'clock",
    "17:45": "seventeen forty five",
    "9:15 am sharp": "nine fifteen eigh M sharp",
    "5pm": "five P M",
    "10am-5pm": "ten eigh M to five P M",
    "at 3:00 p.m. He left": "at three P M. He left",
    # digit strings, ranges, versions
    "555-1234": "five five five, one two three four",
    "call 555-123-4567 now": "call five five five, one two three, four five six seven now",
    "agent 007": "agent zero zero seven",
    "5-10 people": "five to ten people",
    "version 2.13.0": "version two point thirteen point zero",
    "paper A4": "paper A four",
    "GPT-2": "G P T two",
    "3 x 4 = 12": "three times four equals twelve",
    "5 + 3": "five plus three",
    "7 - 2 = 5": "seven minus two equals five",
    "#1": "number one",
    "x^2": "x squared",
    # roman numerals
    "Chapter IV begins": "Chapter four begins",
    "Henry VIII": "Henry the eighth",
    "World War II": "World War two",
    "Mary I think": "Mary I think",
    # abbreviations
    "Dr. Smith": "Doctor Smith",
    "Mr. and Mrs. Brown": "Mister and Missus Brown",
    "Prof. Xu": "Professor Xu",
    "St. Paul": "Saint Paul",
    "Main St. is long": "Main street is long",
    "apples, pears, etc.": "apples, pears, et cetera.",
    "fruit, e.g. pears": "fruit, for example pears",
    "the best, i.e. mine": "the best, that is mine",
    "cats vs. dogs": "cats versus dogs",
    "No. 5": "number five",
    "No. I will not.": "No. I will not.",
    "J. R. R. Tolkien": "J R R Tolkien",
    # units
    "5 km": "five kilometers",
    "1 kg": "one kilogram",
    "a 10-km run": "a ten kilometer run",
    "30cm long": "thirty centimeters long",
    "60 mph": "sixty miles per hour",
    "100 km/h": "one hundred kilometers per hour",
    "20\u00b0C": "twenty degrees Celsius",
    "2.5 GHz": "two point five gigahertz",
    "I saw 5 in May": "I saw five in May",
    # initials
    "the CPU": "the C P U",
    "the USA": "the U S eigh",
    "the U.S. army": "the U S army",
    "TVs": "T V's",
    "I am NOT here": "I am not here",
    "NASA says": "nasa says",
    "HELLO WORLD": "hello world",
    # symbols
    "you & me": "you and me",
    "ann@example.com": "ann at example dot com",
    "and/or": "and or",
    "yes/no": "yes slash no",
    "a = b": "a equals b",
    # marks
    "\u201cHi,\u201d she said \u2014 it\u2019s me\u2026": "Hi, she said, it's me.",
    "well-known": "well known",
    "What?!": "What?",
    "He (my son) left.": "He, my son, left.",
    "Wait... what": "Wait, what",
    "caf\u00e9 na\u00efve": "cafe naive",
    "the dogs' bone": "the dogs bone",
    "one;two:three": "one; two: three",
    "one\ntwo": "one, two",
}
ODD = ["1" * 5000, "9" * 22, f"{'1' * 5000}th", f"${'1' * 5000}", "1/0", "99:99", "1.2.3.4", "5:75"]


@pytest.mark.parametrize("text", SAID)
def test_text_is_written_as_it_is_said(text):
    assert normalise(text).text == SAID[text]


def test_what_has_no_likeness_in_ascii_is_dropped_and_told_once():
    normalised = normalise("Good \U0001f600 morning \u6f22 \U0001f600!")
    assert normalised.text == "Good morning!"
    assert normalised.dropped == ("\U0001f600", "\u6f22")


def test_accents_and_quotes_are_not_told_as_dropped():
    assert normalise("caf\u00e9 \u201cr\u00e9sum\u00e9\u201d e\u0301").dropped == ()


@pytest.mark.parametrize("text", ["", "  \n", "...", "?!", "\U0001f600", '"()"'])
def test_text_with_nothing_to_say_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="expected text with words to say") as refusal:
        normalise(text)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ODD)
def test_no_digit_is_left_of_odd_numbers(text):
    said = normalise(text).text
    assert said
    assert not any(character.isdigit() for character in said)


def test_long_text_without_spaces_is_read():
    assert normalise("x" * 100_000).text == "x" * 100_000

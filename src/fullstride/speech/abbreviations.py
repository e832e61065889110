"""What is written short and said in full: titles, months, units, initials."""

import re

_TITLES = {  # before a name: the period ends no sentence
    "Dr": "Doctor",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Messrs": "Messieurs",
    "Prof": "Professor",
    "Gen": "General",
    "Col": "Colonel",
    "Capt": "Captain",
    "Cpt": "Captain",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Maj": "Major",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Gov": "Governor",
    "Sen": "Senator",
    "Rep": "Representative",
    "Pres": "President",
    "Mt": "Mount",
    "Ft": "Fort",
}
_DATES = {
    **dict(Jan="January", Feb="February", Mar="March", Apr="April", Jun="June", Jul="July", Aug="August"),
    **dict(Sep="September", Sept="September", Oct="October", Nov="November", Dec="December"),
    **dict(Mon="Monday", Tue="Tuesday", Tues="Tuesday", Wed="Wednesday", Thu="Thursday", Thur="Thursday"),
    **dict(Thurs="Thursday", Fri="Friday", Sat="Saturday", Sun="Sunday"),
}
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)
_ANYWHERE = {  # may end a sentence
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
    "vs": "versus",
    "cf": "compare",
    "approx": "approximately",
    "dept": "department",
    "est": "established",
    "ave": "avenue",
    "blvd": "boulevard",
    "rd": "road",
    "jr": "junior",
    "sr": "senior",
    "inc": "incorporated",
    "ltd": "limited",
    "corp": "corporation",
    "bros": "brothers",
    "assn": "association",
    "govt": "government",
    "a.m": "eigh M",
    "p.m": "P M",
    "ph.d": "P H D",
    "u.s": "U S",
    "u.k": "U K",
    "u.n": "U N",
}
_BEFORE_NUMBERS = {
    **{"No": "number", "no": "number", "Nos": "numbers", "p": "page", "pp": "pages", "vol": "volume", "Vol": "volume"},
    **{"ch": "chapter", "Ch": "chapter", "fig": "figure", "Fig": "figure", "sec": "section", "Sec": "section"},
    **{"eq": "equation", "Eq": "equation", "ca": "about", "c": "about"},
}
_UNITS = {  # said after one, and after more
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "m/s": ("meter per second", "meters per second"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "nm": ("nanometer", "nanometers"),
    "m": ("meter", "meters"),
    "mi": ("mile", "miles"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ml": ("milliliter", "milliliters"),
    "l": ("liter", "liters"),
    "L": ("liter", "liters"),
    "gal": ("gallon", "gallons"),
    "ms": ("millisecond", "milliseconds"),
    "s": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "yr": ("year", "years"),
    "yrs": ("year", "years"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "dB": ("decibel", "decibels"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"),
    "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "GiB": ("gibibyte", "gibibytes"),
    "MiB": ("mebibyte", "mebibytes"),
    "degrees C": ("degree Celsius", "degrees Celsius"),
    "degrees F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "degrees": ("degree", "degrees"),
}
_SPELLED = {  # with vowels, yet not read as words; those without vowels are spelled anyway
    "AC", "AD", "AI", "AM", "API", "ATM", "BA", "BCE", "CEO", "CFO", "CIA", "CPU", "CTO", "DIY", "DNA", "DOB",
    "EKG", "ETA", "EU", "FAA", "FAQ", "GPA", "GPU", "HIV", "IBM", "ICU", "ID", "IO", "IOU", "IP", "IPA", "IQ",
    "IRS", "ISO", "IT", "IVF", "LA", "MA", "MIT", "MRI", "NBA", "NIH", "NSA", "OK", "PA", "PE", "RNA", "SOS",
    "UCLA", "UFO", "UI", "UK", "UN", "URL", "US", "USA", "USB", "USD", "USSR", "UV", "VIP",
}

_titles = re.compile(rf"\b({'|'.join(_TITLES)})\.(?=\s|$)|\b({'|'.join(_TITLES)})(?=\s+[A-Z][a-z])")
_dates = re.compile(rf"\b({'|'.join(_DATES)})\.(?!\w)|\b({'|'.join(_DATES)})(?=\s+\d)")
_anywhere = re.compile(rf"\b((?i:{'|'.join(map(re.escape, _ANYWHERE))}))\.(?!\w)(\s+[A-Z]|\s*$|\s*\n)?")
_before_numbers = re.compile(rf"\b({'|'.join(_BEFORE_NUMBERS)})\.\s*(?=\d)")
_unit = "|".join(re.escape(name) for name in sorted(_UNITS, key=len, reverse=True))
_units = re.compile(rf"(?<![\w.,:])(-?\$?[\d,]*\.?\d+)(\s?-?)({_unit})(?![\w'])(?!-\d)")
_capitals = re.compile(r"(?<![\w'])([A-Z]{2,6})('?s)?(?![\w])")
_initials = re.compile(r"\b((?:[A-Z]\.){2,})(\s*$)?")
_one_initial = re.compile(r"(?<![A-Z] )\b((?!I\.\s+[A-Z][a-z])[A-Z])\.(?=\s+[A-Z])")  # not of "at five P M. He"


def expand_words(text: str) -> str:
    """Titles, dates, street signs, Latin."""
    text = re.sub(r"\bSt\.(?=\s+[A-Z])", "Saint", text)
    text = re.sub(r"\b[Ss]t\.(?!\w)", "street", text)
    text = _titles.sub(lambda found: _TITLES[found[1] or found[2]], text)
    text = _dates.sub(lambda found: _DATES[found[1] or found[2]], text)
    text = _before_numbers.sub(lambda found: f"{_BEFORE_NUMBERS[found[1]]} ", text)
    text = _anywhere.sub(_expand_anywhere, text)
    text = re.sub(r"(?<=\d)\s?([ap])\.?m\b", lambda found: " " + spell(found[1] + "m"), text, flags=re.IGNORECASE)
    return re.sub(r"\b(?:w/o)\b", "without", re.sub(r"\bw/(?=\s|\w)", "with ", text))


def expand_units(text: str) -> str:
    """5 km -> 5 kilometers. The number stays, to be read by others."""
    return _units.sub(_expand_unit, text)


def expand_initials(text: str) -> str:
    """CPU -> C P U, but not NOT: a shouted word is a word, and so is NASA."""
    text = _initials.sub(lambda found: spell(found[1]) + ("." if found[2] is not None else ""), text)
    text = _one_initial.sub(lambda found: spell(found[1]), text)
    if not any(letter.islower() for letter in text) and " " in text.strip():
        return text.lower()  # all of it is shouted
    return _capitals.sub(_expand_capitals, text)


def spell(letters: str) -> str:
    """The names of letters. A is written as it sounds: alone, synthesisers take it for the article."""
    return " ".join("eigh" if letter in "aA" else letter.upper() for letter in letters if letter.isalpha())


def _expand_anywhere(found: re.Match[str]) -> str:
    ends = found[2]
    return _ANYWHERE[found[1].lower()] + ("" if ends is None else f".{ends}")


def _expand_unit(found: re.Match[str]) -> str:
    singular, plural = _UNITS[found[3]]
    one = found[1].lstrip("-") == "1" or "-" in found[2]  # a 10-km run
    return f"{found[1]} {singular if one else plural}"


def _expand_capitals(found: re.Match[str]) -> str:
    word, ending = found[1], found[2] or ""
    if word in _SPELLED or not set(word) & set("AEIOUY"):
        return spell(word) + (f"'{ending[-1]}" if ending else "")
    return found[0].lower() if len(word) > 1 else found[0]

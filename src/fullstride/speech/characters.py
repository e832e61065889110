"""Text in ASCII, which is all that the synthesisers read alike."""

import unicodedata

_REPLACED = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4\u02bc", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
    **dict.fromkeys("\u2010\u2011\u00ad\u2212", "-"),  # within words and before numbers
    **dict.fromkeys("\u2012\u2013\u2014\u2015", " - "),  # between thoughts: a pause
    "\u2026": "...",
    "\u00d7": " x ",
    "\u00f7": " divided by ",
    "\u00b1": " plus or minus ",
    "\u00b0": " degrees ",
    "\u00b2": " squared ",
    "\u00b3": " cubed ",
    "\u00b5": "micro",
    "\u03bc": "micro",
    "\u03c0": " pi ",
    "\u00df": "ss",
    "\u00e6": "ae",
    "\u00c6": "Ae",
    "\u0153": "oe",
    "\u0152": "Oe",
    "\u00f8": "o",
    "\u00d8": "O",
    "\u00f0": "th",
    "\u00fe": "th",
    "\u00de": "Th",
    "\u0142": "l",
    "\u0141": "L",
    "\u0131": "i",
    "\u00bf": "",
    "\u00a1": "",
}
_SILENT = {"Mn", "Cc", "Cf", "Zl", "Zp", "Zs"}  # marks, controls, spaces: nothing is lost with them


def to_ascii(text: str, keep: str = "") -> tuple[str, tuple[str, ...]]:
    """The text in printable ASCII and `keep`, and what was dropped, each once, in order of appearance."""
    parts: list[str] = []
    dropped: dict[str, None] = {}
    for character in text:
        if " " <= character <= "~" or character in keep:
            parts.append(character)
        elif character in _REPLACED:
            parts.append(_REPLACED[character])
        else:
            plain = "".join(c for c in unicodedata.normalize("NFKD", character) if " " <= c <= "~" or c == "\u2044")
            category = unicodedata.category(character)
            if plain.strip():
                fraction = "\u2044" in plain  # 2 1/2 is written as one word with its half
                parts.append(f" {plain} ".replace("\u2044", "/") if fraction else plain)
            elif category in ("Mn", "Cf"):
                pass
            elif category in _SILENT:
                parts.append(" ")
            else:
                parts.append(" ")
                dropped[character] = None
    return "".join(parts), tuple(dropped)

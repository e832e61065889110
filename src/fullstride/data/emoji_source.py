"""Emoji as three vendors draw them, out of packages of npm, each with what it shows.

    google.tar    Noto Emoji, 64 x 64                   Apache License 2.0
    twitter.tar   Twemoji, 64 x 64                      CC BY 4.0: (c) Twitter, Inc and other contributors
    fluent.tar    Fluent Emoji of Microsoft, 256 x 256  MIT

Apple's drawings are not free, and Facebook's have no licence that anybody knows: they are not taken. The tar files are
in the form of webdataset, KEY.png or KEY.webp with KEY.json, where KEY are the code points: the same in all three.
Skin tones are left out, and what is drawn as something else is: families by their members are one silhouette, and some
territories have the flag of their country. The download is 152 MB, the pictures are a seventh of it: no smaller package
has them at this size.
"""

import io
import json
import re
import tarfile
from typing import Any

from . import packages

DESCRIPTION = "1,869 emoji drawn by three vendors, with captions, for recipe clip; needs npm, downloads 152 MB"
AMOUNT = "5,567 pictures"
_GOOGLE = "emoji-datasource-google@16.0.0", "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438"
_TWITTER = "emoji-datasource-twitter@16.0.0", "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877"
_FLUENT = "@lobehub/fluent-emoji-3d@1.1.0", "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58"
PACKAGES = {"google": _GOOGLE, "twitter": _TWITTER, "fluent": _FLUENT}  # with the sha256 of the archive
PACKAGE = ", ".join(package for package, _ in PACKAGES.values())
SHA256 = " ".join(sha256 for _, sha256 in PACKAGES.values())
FILES = {
    "google.tar": "31e66d2ada457cc78c1972e3fdb8197a4a3a9e4ef735541619d2c872b4189aa0",
    "twitter.tar": "541c586a6fffc0d1dced30a3b84fb0f97151ffc8d6169e0bf1d21024334fef7a",
    "fluent.tar": "a1d34234e726e469a77e225b4d9df2ea76392b82b54f0d2884416610d3b244ba",
}
VENDORS = tuple(PACKAGES)
PROMPTS = {  # of the categories, for classification by captions
    "Smileys & Emotion": "a face that shows a feeling",
    "People & Body": "a person or a part of the body",
    "Animals & Nature": "an animal or a plant",
    "Food & Drink": "something to eat or to drink",
    "Travel & Places": "a vehicle, a building or the weather",
    "Activities": "a game, a sport or a celebration",
    "Objects": "a thing of daily life",
    "Symbols": "a sign or a symbol",
    "Flags": "the flag of a country",
}
_SAME_FLAGS = re.compile("flag-(bv|cp|cq|dg|ea|hm|mf|sj|um)")
_OUTLINES = re.compile(  # where black and white are ways to print a sign, not what is seen
    "(black|white) (?=(up|down|left|right|smiling|sun|telephone|nib|scissors|universal|arrow|medium star|star|frowning"
    "|heart suit|diamond suit|circle for|square for))"
)
_COLOURS = {  # the same, where a colour tells two apart
    "heavy black heart": "red heart", "black question mark": "red question mark",
    "white question mark": "grey question mark", "white exclamation mark": "grey exclamation mark",
}  # fmt: skip
_VULGAR = ("shit", "hankey")
_FOLDERS = {"google": "img/google/64/", "twitter": "img/twitter/64/", "fluent": "assets/"}


def make() -> dict[str, bytes]:
    found = {vendor: _pictures(vendor) for vendor in VENDORS}
    table = found["google"].pop("emoji.json")
    emoji = [entry for entry in json.loads(table) if _is_taken(entry)]
    emoji.sort(key=lambda entry: int(entry["sort_order"]))
    return {f"{vendor}.tar": _tar(emoji, pictures) for vendor, pictures in found.items()}


def captions(entry: dict[str, Any]) -> list[str]:
    """What a person would call it: the name, then the short names that have a word the name has not."""
    name = str(entry["name"])
    if entry["category"] == "Flags" and name.endswith(" Flag"):
        country = name.removesuffix(" Flag").replace(" & ", " and ")
        return [f"flag of {country}", f"{country} flag"]
    if entry["short_name"].startswith("person") and name.startswith("MAN "):  # named before a man had one of his own
        name = name.replace("MAN ", "PERSON ", 1)
    found = [_natural(name.lower())]
    for short in entry["short_names"]:
        text = _natural(re.sub("[_-]", " ", short).strip())
        is_word = len(text) > 3 and not re.search("[^a-z ']", text) and text not in _VULGAR
        if is_word and not _words(text) <= _words(" ".join(found)):
            found.append(text)
    return found


def _natural(name: str) -> str:
    """man: red hair -> man with red hair; kiss: woman, man -> kiss, a woman and a man; mans shoe -> man's shoe."""
    name = name.replace("\u2019", "'").replace("oclock", "o'clock").replace("keycap:", "keycap")
    for sign, seen in _COLOURS.items():
        name = name.replace(sign, seen)
    name = _OUTLINES.sub("", name).replace("mans ", "man's ")
    what, separator, details = name.partition(": ")
    if not separator:
        return name
    if what in ("man", "woman", "person"):
        return f"bald {what}" if details == "bald" else f"{what} with {'a ' * (details == 'beard')}{details}"
    first, _, second = details.partition(", ")
    return f"{what}, a {first} and a {second}"


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _is_taken(entry: dict[str, Any]) -> bool:
    is_drawn_alike = entry["name"].startswith("FAMILY:") or _SAME_FLAGS.fullmatch(entry["short_name"])
    return entry["category"] in PROMPTS and not is_drawn_alike


def _pictures(vendor: str) -> dict[str, bytes]:
    """By their code points, without those that ask for colours, which vendors have or have not. And emoji.json."""
    package, sha256 = PACKAGES[vendor]
    folder = _FOLDERS[vendor]
    files = packages.npm_files(package, sha256, lambda name: name.startswith(folder) or name == "emoji.json")
    return {name if name == "emoji.json" else _key(name.removeprefix(folder)): file for name, file in files.items()}


def _key(file: str) -> str:
    """1F3F3-FE0F-200D-1F308 and 1f3f3-200d-1f308.png -> 1f3f3-200d-1f308."""
    return file.partition(".")[0].lower().replace("-fe0f", "")


def _tar(emoji: list[dict[str, Any]], pictures: dict[str, bytes]) -> bytes:
    """The same bytes whenever and wherever it is made."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in emoji:
            key = _key(entry["unified"])
            picture = pictures.get(key)
            if picture is None:  # newer than the drawings of this vendor
                continue
            about = {"caption": captions(entry)} | {name: entry[name] for name in ("category", "subcategory")}
            suffix = "png" if picture.startswith(b"\x89PNG") else "webp"
            for end, member in ((suffix, picture), ("json", json.dumps(about).encode())):
                header = tarfile.TarInfo(f"{key}.{end}")  # its time is 0, its owner nobody
                header.size = len(member)
                archive.addfile(header, io.BytesIO(member))
    return content.getvalue()

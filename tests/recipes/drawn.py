"""Drawn scenes as picture files, with and without captions; emoji."""

from pathlib import Path

from fullstride.data import emoji_source
from fullstride.data.pictures.scenes import Scenes

from ..data.pictures.making import encoded, picture

SCENES = Scenes(num=40, size=32, seed=5)


def draw(folder: Path, count: int = 8, form: str = "png") -> list[Path]:
    """scene-00.png and so on."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"scene-{i:02d}.{form}" for i in range(count)]
    for i, path in enumerate(paths):
        Image.fromarray(SCENES.picture(i)).save(path)
    return paths


def draw_pairs(folder: Path, count: int = 8) -> list[Path]:
    """Each with its caption in a .txt beside it."""
    paths = draw(folder, count)
    for i, path in enumerate(paths):
        path.with_suffix(".txt").write_text(SCENES.caption(i))
    return paths


def emoji(folder: Path) -> Path:
    """Tar files as emoji_source makes them, of what each vendor would have drawn."""
    folder.mkdir(parents=True)
    things = [
        {"unified": f"1F3{i:02X}-FE0F", "name": f"{word} THING", "short_name": word.lower(),
         "short_names": [word.lower(), f"such_a_{word.lower()}"], "category": category, "subcategory": "x"}
        for i, word in enumerate(("APPLE", "HOUSE", "TREE", "BOAT", "BALL", "STAR"))
        for category in [list(emoji_source.PROMPTS)[i % 3]]
    ]  # fmt: skip
    for v, vendor in enumerate(emoji_source.VENDORS):
        form = "WEBP" if vendor == "fluent" else "PNG"
        drawn = {
            emoji_source._key(thing["unified"]): encoded(picture(10 * v + i, 32, 32), form)
            for i, thing in enumerate(things)
        }  # fmt: skip
        (folder / f"{vendor}.tar").write_bytes(emoji_source._tar(things, drawn))
    return folder

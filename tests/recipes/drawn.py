"""Drawn scenes as picture files, with and without captions."""

from pathlib import Path

from fullstride.data.pictures.scenes import Scenes

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

"""Pictures that fit a text, best first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .data.pictures import reading
from .data.pictures.found import PICTURES, printable
from .data.pictures.pairs import Scaling
from .models import clip
from .tokens.captions import Captions

_AT_A_TIME = 32  # pictures


@dataclass(frozen=True)
class Trained:
    """A CLIP, what its captions are made of, and how it wants its pictures."""

    model: nn.Module
    captions: Captions
    image: int  # pixels a side
    context: int  # tokens
    scaling: Scaling


@dataclass(frozen=True)
class Index:
    """Pictures as vectors; what could not be read is in `skipped`, a line each."""

    paths: Sequence[Path]
    vectors: Tensor  # (N, E), of length 1
    skipped: Sequence[str]


@dataclass(frozen=True)
class Found:
    path: Path
    similarity: float  # the cosine, -1 to 1


def pictures_in(folder: Path) -> list[Path]:
    """By name, those in folders inside of it, too."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and path.is_file())
    if not found:
        raise ValueError(f"{folder}: expected pictures ({', '.join(PICTURES)}), got none")
    return found


@torch.no_grad()
def index(trained: Trained, paths: Sequence[Path], progress: Callable[[int], None] = lambda done: None) -> Index:
    """progress: told how many are done."""
    vectors, kept, skipped = [], list[Path](), list[str]()
    for start in range(0, len(paths), _AT_A_TIME):
        pictures: list[NDArray[np.uint8]] = []
        with reading.quiet():
            for path in paths[start : start + _AT_A_TIME]:
                try:
                    pictures.append(reading.decode(path.read_bytes(), trained.image))
                    kept.append(path)
                except (ValueError, OSError) as error:
                    skipped.append(printable(f"{path}: {error.strerror if isinstance(error, OSError) else error}"))
        if pictures:
            vectors.append(clip.encode_images(trained.model, trained.scaling(np.stack(pictures))))
        progress(min(start + _AT_A_TIME, len(paths)))
    if not vectors:
        raise ValueError(f"expected pictures that can be read, got none of {len(paths)}: {skipped[0]}")
    return Index(kept, torch.cat(vectors), skipped)


def check_text(text: str) -> None:
    if not text.strip():
        raise ValueError("expected words to look for, got an empty text")


@torch.no_grad()
def search(trained: Trained, pictures: Index, text: str, most: int) -> list[Found]:
    check_text(text)
    wanted = clip.encode_texts(trained.model, trained.captions.batch([text], trained.context))[0]
    values, places = (pictures.vectors @ wanted).topk(min(most, len(pictures.paths)))
    pairs = zip(values.tolist(), places.tolist(), strict=True)
    return [Found(pictures.paths[place], value) for value, place in pairs]

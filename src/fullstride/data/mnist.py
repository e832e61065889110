"""MNIST and what is packed like it (Fashion-MNIST, KMNIST, EMNIST), from IDX files, plain or gzipped: grey images.

A folder with four files (train-images-idx3-ubyte, ..., t10k-labels-idx1-ubyte) is split by them. Sizes and classes are
those that are found; mean and deviation are those of the training images, to four places, which for MNIST are the
0.1307 and 0.3081 that everybody takes. EMNIST's files begin with the name of the set (emnist-letters-train-...), say
test for t10k, have their images on their side, and count letters from 1: they come out upright and from 0.

One with the 5,000 images of `fullstride data mnist` is split here, 4,000 to train and 1,000 held out, by a fixed seed.
"""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from . import idx, sources
from .augment import Augment
from .images import ImageDataset
from .order import permutation

NUM_HELD_OUT, SPLIT_SEED = 1000, 0
_MEAN, _STD = 0.1307, 0.3081  # of the 60,000 training images
_SPLITS = {"train": ("train",), "valid": ("t10k", "test")}  # the names of each in files
_SUBSET = sources.MNIST_IMAGES, sources.MNIST_LABELS
_FASHION = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


class _Files(NamedTuple):
    images: Path
    labels: Path


def load(
    folder: Path | None = None,
    split: Literal["train", "valid"] = "train",
    augment: Augment | None = None,
    flat: bool = True,
) -> ImageDataset:
    """The images of a split, as (N, H * W) or, unless flat, (N, 1, H, W)."""
    if split not in _SPLITS:
        raise ValueError(f"split: expected train or valid, got {split!r}")
    folder = folder or sources.default_folder("mnist")
    prefix = _prefix(folder)
    if prefix is None:
        return _subset(folder, split, augment, flat)
    train, own = _files(folder, prefix, "train"), _files(folder, prefix, split)
    first, num_classes = _classes(train.labels)
    labels = idx.read_labels(own.labels, first + num_classes)
    if labels.size and labels.min() < first:
        record = int(labels.argmin())
        where = f"label 0 of record {record} (byte {8 + record})"
        raise ValueError(f"{own.labels}: {where}: expected one from 1 to {num_classes}, as in {train.labels}")
    of_train = idx.read(train.images, (None, None))
    images = of_train if split == "train" else idx.read(own.images, (of_train.shape[1], of_train.shape[2]))
    _check(own, images, labels)
    mean, std = _mean_and_std(of_train)
    if prefix.startswith("emnist"):
        images = images.transpose(0, 2, 1)
    names = _names(folder, prefix, num_classes)
    return _dataset(images, labels - first, mean, std, names, augment, flat)


def _subset(folder: Path, split: str, augment: Augment | None, flat: bool) -> ImageDataset:
    own = _Files(*(_find(folder, [name]) for name in _SUBSET))
    images, labels = idx.read(own.images, (28, 28)), idx.read_labels(own.labels, 10)
    _check(own, images, labels)
    order = permutation(len(images), SPLIT_SEED, 0)
    chosen = order[:NUM_HELD_OUT] if split == "valid" else order[NUM_HELD_OUT:]
    return _dataset(images[chosen], labels[chosen], _MEAN, _STD, tuple("0123456789"), augment, flat)


def _dataset(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], mean: float, std: float, names: tuple[str, ...],
    augment: Augment | None, flat: bool,
) -> ImageDataset:  # fmt: skip
    pixels = torch.tensor(images).unsqueeze(1).contiguous()
    return ImageDataset(pixels, torch.tensor(labels).long(), (mean,), (std,), names, augment, flat)


# ---- what is in a folder ---------------------------------------------------------------------------------------------


def _prefix(folder: Path) -> str | None:
    """What the names of the files begin with; None: there is no full set. Two sets in a folder are refused."""
    found = set()
    for part in (part for parts in _SPLITS.values() for part in parts):
        for path in folder.glob(f"*{part}-images?idx3-ubyte*"):
            head, middle, _ = path.name.partition(f"{part}-images")
            if middle and path.suffix in ("", ".gz", ".idx3-ubyte") and (not head or head.endswith("-")):
                found.add(head)
    if len(found) > 1:
        names = ", ".join(sorted(head.rstrip("-") or "no prefix" for head in found))
        raise ValueError(f"{folder}: expected one set, got several ({names}); put the four files of one into a folder")
    return found.pop() if found else None


def _files(folder: Path, prefix: str, split: str) -> _Files:
    parts = _SPLITS[split]
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return _Files(*(_find(folder, [f"{prefix}{part}-{kind}" for part in parts]) for kind in kinds))


def _find(folder: Path, names: list[str]) -> Path:
    for name in names:
        path = idx.find(folder, name)
        if path is not None:
            return path
    command, way = sources.command("mnist", folder), sources.by_hand("mnist", folder)
    raise FileNotFoundError(
        f"no MNIST in {folder} ({names[0]} is missing): `{command}` gets 5,000 images of it; {way}"
    )


def _classes(path: Path) -> tuple[int, int]:
    """The first label, which is 1 where all from there on and no 0 occur, and how many there are.

    From 10 on each must occur: one behind a gap is taken for a damaged file.
    """
    labels = idx.read(path, ())
    present = np.bincount(labels, minlength=1) > 0
    missing = np.flatnonzero(~present[10:])
    if missing.size:
        idx.read_labels(path, 10 + int(missing[0]))
    first = int(len(present) > 2 and not present[0] and present[1:].all())
    return first, max(1, len(present) - first)


def _check(files: _Files, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    if len(images) != len(labels):
        raise ValueError(
            f"{files.images} has {len(images)} images and {files.labels} {len(labels)} labels: get both anew"
        )
    if not len(images):
        raise ValueError(f"{files.images}: expected an image at least, got none")


def _mean_and_std(images: NDArray[np.uint8]) -> tuple[float, float]:
    """Exact, by counting each brightness."""
    counts = np.bincount(images.reshape(-1), minlength=256)
    values = np.arange(256) / 255
    mean = float(counts @ values) / counts.sum()
    variance = float(counts @ (values - mean) ** 2) / counts.sum()
    return round(mean, 4), round(variance**0.5, 4) or 1.0


def _names(folder: Path, prefix: str, num_classes: int) -> tuple[str, ...]:
    if num_classes == 10 and "fashion" in folder.name.lower():
        return _FASHION
    if num_classes == 26 and prefix.startswith("emnist-letters"):
        return tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return tuple(map(str, range(num_classes)))

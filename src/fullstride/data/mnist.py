"""MNIST from IDX files, plain or gzipped: 28 x 28 grey digits.

A folder with the four files of the full set (train-images-idx3-ubyte, ..., t10k-labels-idx1-ubyte) is split by them.
One with the 5,000 images of `fullstride data mnist` is split here, 4,000 to train and 1,000 held out, by a fixed seed.
"""

from pathlib import Path
from typing import Literal

import torch

from . import idx, sources
from .augment import Augment
from .images import ImageDataset
from .order import permutation

NUM_HELD_OUT, SPLIT_SEED = 1000, 0
_MEAN, _STD = 0.1307, 0.3081  # of the 60,000 training images
_FULL = {"train": "train", "valid": "t10k"}


def load(
    folder: Path | None = None,
    split: Literal["train", "valid"] = "train",
    augment: Augment | None = None,
    flat: bool = True,
) -> ImageDataset:
    """The images of a split, as (N, 784) or, unless flat, (N, 1, 28, 28)."""
    if split not in _FULL:
        raise ValueError(f"split: expected train or valid, got {split!r}")
    folder = folder or sources.default_folder("mnist")
    full = f"{_FULL[split]}-images-idx3-ubyte", f"{_FULL[split]}-labels-idx1-ubyte"
    is_full = any(idx.find(folder, f"{part}-images-idx3-ubyte") for part in _FULL.values())
    image_file, label_file = (_find(folder, name) for name in (full if is_full else _SUBSET))
    images, labels = idx.read(image_file, (28, 28)), idx.read_labels(label_file, 10)
    if len(images) != len(labels):
        raise ValueError(f"{image_file} has {len(images)} images and {label_file} {len(labels)} labels: get both anew")
    if not is_full:
        order = permutation(len(images), SPLIT_SEED, 0)
        chosen = order[:NUM_HELD_OUT] if split == "valid" else order[NUM_HELD_OUT:]
        images, labels = images[chosen], labels[chosen]
    return ImageDataset(
        torch.tensor(images).unsqueeze(1),
        torch.tensor(labels).long(),
        mean=(_MEAN,),
        std=(_STD,),
        class_names=tuple("0123456789"),
        augment=augment,
        flat=flat,
    )


_SUBSET = sources.MNIST_IMAGES, sources.MNIST_LABELS


def _find(folder: Path, name: str) -> Path:
    path = idx.find(folder, name)
    if path is None:
        command = sources.command("mnist", folder)
        raise FileNotFoundError(f"no MNIST in {folder} ({name} is missing): `{command}` gets 5,000 images of it")
    return path

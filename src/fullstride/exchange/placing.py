"""Files that appear under their names whole or not at all, several at once where they belong together."""

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .. import durable

if TYPE_CHECKING:
    from torch import Tensor


def refuse_existing(target: Path, replace: bool) -> None:
    """Before the work that would be in vain."""
    if not target.absolute().parent.is_dir():
        raise ValueError(f"cannot write {target}: there is no folder {target.parent}")
    if os.path.lexists(target) and not replace:
        raise ValueError(f"{target} is there already: give another name, or --force to replace it")


@contextlib.contextmanager
def aside(target: Path) -> Iterator[Path]:
    """A folder beside the target, to write in what is not whole yet. It is removed with what is left in it."""
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(".partial", f".{target.name}.", target.absolute().parent))
        yield folder
    except OSError as error:
        reason = error.strerror or (os.strerror(error.errno) if error.errno else error)
        raise type(error)(f"cannot write {target}: {reason}") from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def save_tensors(path: Path, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
    """By safetensors, which makes a file readable for its owner alone, and has errors of its own."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # what the system said is in it
        raise OSError(str(error)) from None
    path.chmod(mode)


def place(files: dict[Path, Path], replace: bool) -> None:
    """Gives each file or folder its name: written -> target. If one cannot have it, all is as it was before."""
    undo: list[Callable[[], object]] = []
    kept: list[Path] = []
    try:
        for written, target in files.items():
            for member in [*written.rglob("*"), written]:
                durable.sync(member)
            if replace and os.path.lexists(target):
                kept.append(_put_by(target, written))
                undo.append(functools.partial(_put_back, kept[-1], target))
                os.replace(written, target)
            else:
                _name(written, target)
                undo.append(functools.partial(durable.remove, target))
    except BaseException:
        for step in reversed(undo):
            with contextlib.suppress(OSError):
                step()
        raise
    for path in kept:
        durable.remove(path)
    for folder in {target.absolute().parent for target in files.values()}:
        durable.sync(folder)


def _name(written: Path, target: Path) -> None:
    """A link, unlike a renaming, cannot take the place of a file that came meanwhile; a folder takes no full one's."""
    try:
        if written.is_dir():
            os.rename(written, target)
        else:
            os.link(written, target)
    except OSError:  # it is there already, or the file system has no links
        if os.path.lexists(target):
            raise ValueError(f"{target} is there already: give another name, or --force to replace it") from None
        os.rename(written, target)


def _put_by(target: Path, written: Path) -> Path:
    """Another name for what is there. A file keeps its own as well, so that at no time there is none."""
    before = written.with_name(f"{written.name}.before")
    if target.is_dir() and not target.is_symlink():
        os.rename(target, before)
        return before
    try:
        os.link(target, before, follow_symlinks=False)
    except OSError:  # a file system without links
        os.rename(target, before)
    return before


def _put_back(before: Path, target: Path) -> None:
    if os.path.lexists(target) and target.is_dir():
        shutil.rmtree(target)
    os.replace(before, target)

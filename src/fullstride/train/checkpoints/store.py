"""Checkpoints that survive: a folder of directories step-00000120/ and best-00000100/.

A directory is written under a hidden name, every file of it synced to the disk and the manifest last, and then renamed;
it is read back before older ones are removed. So the process may be killed at any moment: under the name of a
checkpoint there is a whole one. What is damaged later (by a disk, by copying) is told by its checksums and passed over.

One process writes into a folder at a time, which the lock of its run sees to; any number may read.
"""

import errno
import logging
import os
import re
from pathlib import Path
from typing import Literal, NoReturn

from ... import durable
from ...durable import Poll, no_poll
from ...machine.memory import as_size
from . import directory, tensor_files
from .directory import Content, InvalidCheckpoint, Snapshot, reason

__all__ = ["InvalidCheckpoint", "Kind", "NonFiniteWeights", "Snapshot", "Store"]

_PARTIAL, _REPLACED = ".partial-", ".replaced-"
_BLOCK = 4096  # bytes; files take whole ones
_SPARE = 1 << 20  # bytes that stay free for logs and metrics, and 2 % of the checkpoint

Kind = Literal["step", "best"]
logger = logging.getLogger(__name__)


class NonFiniteWeights(ValueError):
    """The model has a NaN or an infinity: nothing was written and nothing removed."""


class Store:
    """The checkpoints of a run: the `keep` newest steps and the last that was best."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"expected at least 1 checkpoint to keep, got {keep}")
        self.folder, self.keep = Path(folder), keep

    # ---- saving --------------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot, kind: Kind = "step", poll: Poll = no_poll) -> Path:
        """Writes the snapshot and returns its directory. OSError in one line; those saved before are then untouched.

        poll: called between large pieces; what it raises ends the saving, and leaves those before untouched as well.
        """
        _check_finite(snapshot)
        files = directory.contents(snapshot)
        target = self.path(snapshot.step, kind)
        try:
            self._make_folder()
            self._tidy()
            self._check_space(files)
            self._write(target, files, kind, snapshot.step, poll)
            self._read_back(target, poll)
        except OSError as error:
            _fail(error, f"checkpoint of step {snapshot.step} not saved in {self.folder}")
        self._prune(target, kind)
        return target

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            durable.sync(self.folder.parent)

    def _check_space(self, files: dict[str, Content]) -> None:
        need = sum(content.size + _BLOCK for content in files.values()) + 2 * _BLOCK
        need += _SPARE + need // 50
        status = os.statvfs(self.folder)
        free = status.f_bavail * status.f_frsize
        if free < need:
            raise OSError(errno.ENOSPC, f"expected {as_size(need)} of free space, got {as_size(free)}; free some")

    def _write(self, target: Path, files: dict[str, Content], kind: Kind, step: int, poll: Poll) -> None:
        """Puts all files under the target's name, whole or not at all. What had that name before is set aside."""
        partial, aside = self.folder / f"{_PARTIAL}{target.name}", self.folder / f"{_REPLACED}{target.name}"
        try:
            directory.write(partial, files, kind, step, poll)
            if target.exists():
                os.rename(target, aside)  # no directory can be renamed over another; _paths() knows of both
            os.rename(partial, target)
            durable.sync(self.folder)
        except BaseException:
            if aside.exists() and not target.exists():
                os.rename(aside, target)
            _try_to_remove(partial)
            raise

    def _read_back(self, target: Path, poll: Poll) -> None:
        try:
            directory.verify(target, poll=poll)
        except InvalidCheckpoint as error:
            _try_to_remove(target)
            self._tidy()  # the one set aside comes back
            raise OSError(errno.EIO, f"read back, it is not what was written: {error}; check the disk") from error
        _try_to_remove(self.folder / f"{_REPLACED}{target.name}")

    def _tidy(self) -> None:
        """Removes what a process left that was killed while it saved. Of two of one step a valid one stays."""
        for path in self._hidden(_REPLACED):
            target = self.folder / path.name.removeprefix(_REPLACED)
            if not _is_valid(target) and _is_valid(path):
                durable.remove(target)
                os.rename(path, target)
            else:
                durable.remove(path)
        for path in self._hidden(_PARTIAL):
            durable.remove(path)

    def _hidden(self, prefix: str) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.name.startswith(prefix)]

    def _prune(self, saved: Path, kind: Kind) -> None:
        """Keeps the newest whole ones besides the one just read back; of the best, that one alone."""
        others = [path for path in self._paths(kind) if path != saved]
        # By sizes alone: reading each at every saving would cost as much as the saving.
        whole = [path for path in others if _is_valid(path, checksums=False)]
        kept = whole[: self.keep - 1] if kind == "step" else []
        kept += [path for path in others if path not in whole and _step(path) > _step(saved)]  # for whoever looks why
        for path in others:
            if path not in kept:
                self._drop(path)

    def _drop(self, path: Path) -> None:
        hidden = path.with_name(f"{_PARTIAL}{path.name}")  # killed halfway, it must not have a checkpoint's name
        try:
            os.rename(path, hidden)
            durable.remove(hidden)
        except OSError as error:
            logger.warning("old checkpoint %s could not be removed: %s", path, reason(error))

    # ---- loading -------------------------------------------------------------------------------------------------

    def newest(self) -> Snapshot | None:
        """The newest valid one of kind "step", with a warning for each that is passed over."""
        return self._newest("step")

    def best(self) -> Snapshot | None:
        """The valid one of kind "best"."""
        return self._newest("best")

    def path(self, step: int, kind: Kind = "step") -> Path:
        """Where the checkpoint of a step is, if there is one."""
        return self.folder / f"{kind}-{step:08d}"

    def load(self, path: Path) -> Snapshot:
        """One checkpoint, in memory. InvalidCheckpoint says what is wrong with which file."""
        return directory.load(path)

    def steps(self) -> list[int]:
        """Of the checkpoints of kind "step" that are there, valid or not, oldest first."""
        return sorted({_step(path) for path in self._paths("step")})

    def _newest(self, kind: Kind) -> Snapshot | None:
        passed: set[Path] = set()
        # Looked for anew after each: a run that goes on saving may have removed one while it was read.
        while left := [path for path in self._paths(kind) if path not in passed]:
            try:
                return self.load(left[0])
            except InvalidCheckpoint as error:
                logger.warning("checkpoint %s passed over: %s", left[0], error)
                passed.add(left[0])
        return None

    def _paths(self, kind: Kind) -> list[Path]:
        """The newest first; one that is being replaced after the one in its place."""
        pattern = re.compile(rf"({re.escape(_REPLACED)})?{kind}-\d{{8,}}")
        try:
            found = [path for path in self.folder.iterdir() if pattern.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda path: (_step(path), path.name[0] != "."), reverse=True)


def _check_finite(snapshot: Snapshot) -> None:
    for name, tensor in snapshot.tensors.get("model", {}).items():
        if not tensor_files.is_finite(tensor):
            raise NonFiniteWeights(
                f"expected finite weights to save, got NaN or infinity in {name} at step {snapshot.step};"
                f" nothing was saved, resume from the checkpoint before"
            )


def _is_valid(path: Path, checksums: bool = True) -> bool:
    try:
        directory.verify(path, checksums)
    except InvalidCheckpoint:
        return False
    return True


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _try_to_remove(path: Path) -> None:
    try:
        durable.remove(path)
    except OSError as error:  # why the saving failed is told; the next one tidies up
        logger.debug("%s is left behind: %s", path, reason(error))


def _fail(error: OSError, what: str) -> NoReturn:
    """The same error, in one line for people."""
    failure = type(error)(f"{what}: {reason(error)}; those saved before are untouched")
    failure.errno = error.errno
    raise failure from error

"""One folder with everything of a run.

    config.yaml      the resolved configuration: what is there makes a folder a run
    machine.json     what it ran on
    metrics.jsonl    every row (metrics.py)
    metrics.csv, evaluations.csv   the same as tables
    log.txt          what was said
    checkpoints/     states to go on from (train/checkpoints)
    compare.json, memory.json   if `fullstride compare` or `memory` was told to write them here: the report shows them
    report.html      made at the end, or by `fullstride report`
    run.lock         locked by the process that trains here, with its id and host inside
"""

from datetime import datetime
from pathlib import Path

from .. import durable
from . import lock

_OURS = ("metrics.jsonl", "checkpoints", "machine.json", "report.html")


class RunFolder:
    """Made by create() for a new run, open() to go on with one, read() to look at one. The first two lock it."""

    def __init__(self, path: Path, config_yaml: str, descriptor: int | None = None) -> None:
        self.path = path
        self.config_yaml = config_yaml
        self._lock = descriptor  # of its locked file

    @classmethod
    def create(
        cls, path: Path | None, config_yaml: str, recipe: str = "run", parent: Path = Path("runs")
    ) -> "RunFolder":
        """Without a path, runs/<recipe>-<date>-<time>, with -2 and so on if that is taken."""
        path = _make(Path(path)) if path is not None else make_named(recipe, parent)
        folder = cls(path, config_yaml, lock.take(path))
        try:
            if (path / "config.yaml").exists():
                raise ValueError(
                    f"{path} holds a run already: go on with it by `fullstride resume {path}`, or give another folder"
                )
            taken = [name for name in _OURS if (path / name).exists()]
            if taken:
                raise ValueError(f"{path} holds {taken[0]} but no config.yaml: give a new or an empty folder")
            folder.write("config.yaml", config_yaml)  # first: killed in here, there is a run, or room for one
            folder.checkpoints.mkdir()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        folder = cls.read(path)
        folder._lock = lock.take(folder.path)
        return folder

    @classmethod
    def read(cls, path: Path) -> "RunFolder":
        """To look at a run that may be in progress or in a read-only place."""
        path = Path(path)
        try:
            return cls(path, (path / "config.yaml").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(_not_a_run(path)) from None
        except UnicodeDecodeError:
            raise ValueError(f"{path / 'config.yaml'}: expected YAML, got a file that is not text in UTF-8") from None
        except OSError as error:
            raise ValueError(f"cannot read {path / 'config.yaml'}: {error.strerror}") from None

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether this is a run, or what is left of one."""
        return any((path / name).exists() for name in ("config.yaml", "metrics.jsonl", "checkpoints"))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def write(self, name: str, text: str) -> Path:
        """A small file, whole or not at all whatever happens meanwhile."""
        return durable.replace(self.path / name, text.encode(), alone=True)

    def close(self) -> None:
        """Lets others train here."""
        if self._lock is not None:
            lock.release(self._lock)
            self._lock = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{path} cannot be a run folder: it, or what it lies in, is a file") from None
    except OSError as error:
        raise ValueError(f"cannot make the run folder {path}: {error.strerror}; give one that can be written") from None
    return path


def make_named(recipe: str, parent: Path = Path("runs")) -> Path:
    """A new folder runs/<recipe>-<date>-<time>, with -2 and so on if that is taken."""
    _make(parent)
    name = f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ValueError(
                f"cannot make the run folder {path}: {error.strerror}; give one that can be written"
            ) from None


def _not_a_run(path: Path) -> str:
    if not path.exists():
        return f"there is no run folder {path}: give one that `fullstride train` made, it printed its name"
    runs = sorted(path.glob("*/config.yaml"), key=lambda file: file.stat().st_mtime) if path.is_dir() else []
    hint = f"did you mean {runs[-1].parent}?" if runs else "give a folder that `fullstride train` made"
    return f"{path} is not a run folder, it has no config.yaml: {hint}"

"""A measurement in parts that can be stopped and continued: the folder of `compare`, `ablate`, `tune` and their kind.

    studies/ablate-mlp/
        study.json     what was asked for, on what it is measured, the parts that are done, and the outcome
        report.html    the outcome for people, with pictures
        picture.png    the picture of it that says most
        run.lock       locked while somebody measures

A part is recorded when it is done. Whatever ends the process, the same command goes on after the last of them; with
other wishes, on another machine or commit, with other threads or variables of OpenMP, MKL or ours, it is refused, since
parts of both would be taken for one. `--anew` begins again and leaves what there was under another name.
"""

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .. import durable
from ..run_folder import lock
from ..run_folder.flat import flat
from ..train.errors import RunEnded

if TYPE_CHECKING:
    from ..report.section import Figure, Section

HOME = Path("studies")
FILE = "study.json"
# Of the conditions, and variables of the environment; parts of others do not mix.
_SAME = ("cpu", "usable_cores", "threads", "best_isa", "torch", "python", "commit")
_VARIABLES = re.compile(r"FULLSTRIDE_(?!QUIET$)|OMP_|MKL_")
_FORMAT = 1
_KEYS: dict[str, Any] = {"command": str, "wish": dict, "conditions": dict, "parts": dict, "outcome": (dict, type(None))}
_NO_MATTER = ("run.lock", f"{FILE}.partial")  # what there is before the first file is
Say = Callable[[str], object]


def say_now(text: str) -> None:
    print(text, flush=True)  # also into a file or a pipe: what is next takes a minute


class StudyStopped(RunEnded):
    """Ctrl-C or SIGTERM. What is done is saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.code = 128 + signum


class Study:
    """Made by opened(). `parts`: name -> what was found, in the order in which it was recorded."""

    def __init__(self, folder: Path, content: dict[str, Any], say: Say) -> None:
        self.folder, self.say = folder, say
        self._content = content
        self._began, self._num_before = time.monotonic(), 0

    @property
    def parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = self._content["parts"]
        return parts

    @property
    def conditions(self) -> dict[str, Any]:
        """Those of the beginning."""
        conditions: dict[str, Any] = self._content["conditions"]
        return conditions

    @property
    def outcome(self) -> dict[str, Any] | None:
        """What finish() was given, if it was called."""
        outcome: dict[str, Any] | None = self._content["outcome"]
        return outcome

    def left(self, names: Sequence[str]) -> Iterator[str]:
        """Those of these parts that are not done, one after the other; each must be recorded before the next."""
        todo = [name for name in names if name not in self.parts]
        self._began, self._num_before = time.monotonic(), len(names) - len(todo)
        if self._num_before and todo:
            self.say(f"{self._num_before} of {len(names)} parts were done before: going on")
        for count, name in enumerate(todo, 1):
            yield name
            assert name in self.parts, f"{name} was not recorded"
            seconds = (time.monotonic() - self._began) / count * (len(todo) - count)
            rest = f"; about {as_time(seconds)} left" if count < len(todo) else ""
            self.say(f"[{self._num_before + count}/{len(names)}] {name}: {self.parts[name].get('said', 'done')}{rest}")

    def record(self, name: str, part: Mapping[str, Any], said: str = "") -> None:
        """`said`: what left() prints of it."""
        new = {**part, **({"said": said} if said else {})}
        self._write(parts=self.parts | {name: new}, outcome=None)  # before it counts; an outcome is of fewer parts
        self.parts[name], self._content["outcome"] = new, None

    def finish(self, outcome: Mapping[str, Any]) -> None:
        self._write(outcome=dict(outcome))
        self._content["outcome"] = dict(outcome)

    def write_report(self, title: str, lead: str, sections: Sequence["Section"], picture: "Figure") -> list[Path]:
        """report.html and picture.png, and their paths; without matplotlib none, which is said."""
        from ..report import drawing, page
        from ..report.section import WIDTH

        try:
            drawing.require_matplotlib()
        except ValueError as error:
            self.say(f"no picture: {error}")
            return []
        header = page.plain_header(self._content["command"], title, lead)
        text = page.document(title, header, [*sections, _taken(self.conditions, self._content.get("environment", {}))])
        image = drawing.png(picture.draw, 1.5 * WIDTH, 1.5 * picture.height)
        return [
            durable.replace(self.folder / "report.html", text.encode()),
            durable.replace(self.folder / "picture.png", image),
        ]

    def _write(self, **changes: Any) -> None:
        text = json.dumps(self._content | changes, indent=1, allow_nan=False)
        durable.replace(self.folder / FILE, (text + "\n").encode(), alone=True)


def _taken(conditions: Mapping[str, Any], environment: Mapping[str, str]) -> "Section":
    from ..report.section import Section, Table

    rows = [(name.replace("_", " "), str(value)) for name, value in conditions.items()]
    rows += environment.items()
    return Section("How it was taken", tables=[Table("Machine, versions, commit and environment.", (), rows)])


@contextlib.contextmanager
def opened(
    folder: Path,
    command: str,
    wish: Mapping[str, Any],
    conditions: Mapping[str, Any],
    anew: bool = False,
    say: Say = say_now,
) -> Iterator[Study]:
    """The study in this folder, begun or to be continued.

    command: as a user types it, `ablate mlp`. wish: what decides what is measured, plain JSON.
    """
    wish = json.loads(json.dumps(wish))

    def look() -> dict[str, Any] | None:
        found = check(folder)
        if found is None or not (found["parts"] or found["outcome"]):
            return None  # of what failed before its first part, nothing can mix
        if not anew:
            _check_same(folder, found, command, wish, conditions)
        return found

    look()  # before there is a folder that nobody wanted
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = lock.take(folder)
    try:
        before = look()  # who held the lock until now may have measured
        if before is not None and anew:
            _put_aside(folder, say)
        begins = before is None or anew
        content = _new(command, wish, conditions) if begins else before
        assert content is not None
        study = Study(folder, content, say)
        if begins:
            study._write()
        with _signals():
            try:
                yield study
            except _Signal as signal_:
                how = f"stopped by {signal.Signals(signal_.number).name}"
                found = check(folder)  # a signal may come when a part is in the file and not yet in memory
                assert found is not None
                kept = f"{len(found['parts'])} parts are kept in {folder}: the same command goes on"
                raise StudyStopped(f"{how}; {kept}", signal_.number) from None
    finally:
        if descriptor is not None:
            lock.release(descriptor)


def check(folder: Path) -> dict[str, Any] | None:
    """What is in it, None if nothing. ValueError if it is something else. Without torch."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--to: expected a folder, got the file {folder}; give another name")
    if not (folder / FILE).exists():
        if folder.is_dir() and any(path.name not in _NO_MATTER for path in folder.iterdir()):
            raise ValueError(f"--to: {folder} has other things in it, and no {FILE}; give an empty or a new folder")
        return None
    try:
        content: dict[str, Any] = json.loads((folder / FILE).read_bytes())
        good = content["format"] == _FORMAT and all(isinstance(content[key], kind) for key, kind in _KEYS.items())
    except (ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise ValueError(f"{folder / FILE} cannot be read: remove {folder}, or name another folder by --to")
    return content


def _new(command: str, wish: Any, conditions: Mapping[str, Any]) -> dict[str, Any]:
    begun = {"format": _FORMAT, "command": command, "wish": wish, "conditions": dict(conditions)}
    return begun | {"environment": _environment(), "parts": {}, "outcome": None}


def _environment() -> dict[str, str]:
    """The variables that change what runs."""
    return {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)}


def _check_same(
    folder: Path, before: dict[str, Any], command: str, wish: Any, conditions: Mapping[str, Any]
) -> None:
    environment = before.get("environment", {})
    was, now = (
        flat({"command": c, **w, **{name: f.get(name) for name in _SAME}, **e})
        for c, w, f, e in (
            (before["command"], before["wish"], before["conditions"], environment),
            (command, wish, conditions, _environment()),
        )
    )
    for name in {**was, **now}:
        if was.get(name) != now.get(name):
            raise ValueError(
                f"{folder} holds a study with {name} {was.get(name)}, here it is {now.get(name)}: --anew begins again,"
                " --to names another folder"
            )


def _put_aside(folder: Path, say: Say) -> None:
    """Nothing that was measured is lost. The study goes last: killed before, the same command can do the rest."""
    number, whole = 1, folder.resolve()
    while (kept := whole.with_name(f"{whole.name}-before-{number}")).exists():
        number += 1
    kept.mkdir()
    for path in sorted(folder.iterdir(), key=lambda path: path.name == FILE):
        if path.name != "run.lock":
            path.rename(kept / path.name)
    say(f"what there was is in {folder.with_name(kept.name) if folder.name else kept} now")


class _Signal(BaseException):
    """Not an Exception: nobody on the way may take it for a failure of what is measured."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _Signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def as_time(seconds: float) -> str:
    """12 s, 5 min, 1 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def folder_of(command: str, recipe: str, wish: Path | None) -> Path:
    """Where a study goes if nobody says where."""
    return HOME / f"{command}-{recipe}" if wish is None else wish

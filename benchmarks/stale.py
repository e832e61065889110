"""Which results are of code that has changed since. Asks git; without torch.

A change of a comment counts, too: only a new measurement can tell that it did not matter.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import result_files, suites
from .result_files import File

UNKNOWN = "unknown: its commit is not in this clone's history"
_SHOWN = 2  # places that have changed


class Finding(NamedTuple):
    """what: an op, a model. state: "" if nothing has changed since, else why a new measurement is due."""

    what: str
    state: str


def findings(file: File, root: Path) -> list[list[Finding]]:
    """Of each part."""
    return [
        [Finding(what, state(root, result_files.commit_of(part), what, paths)) for what, paths in measured.items()]
        for part in file.parts
        for measured in [suites.sources(file.suite, part)]
    ]


def state(root: Path, commit: str, what: str, paths: Sequence[str]) -> str:
    # An ancestor, not just a known object: a commit of another branch says nothing about what changed on this one.
    if git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return UNKNOWN
    if set(suites.own_sources(what)) <= set(paths) and suites.gone(what, root):
        return "gone: there is no such op any more"
    changed = (git(root, "diff", "--name-only", commit, "HEAD", "--", *paths) or "").split()
    if not changed:
        return ""
    commits = (git(root, "log", "--format=%h", f"{commit}..HEAD", "--", *paths) or "").split()
    found = {_place(path, paths) for path in changed}
    places = [path for path in paths if path in found]  # its own files before those it shares
    shown = ", ".join(places[:_SHOWN]) + (f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else "")
    return f"stale: {len(commits)} commit{'s' * (len(commits) != 1)} since in {shown}"


def _place(path: str, paths: Sequence[str]) -> str:
    return next(place for place in paths if path == place or path.startswith(place + "/"))


def git(root: Path, *arguments: str) -> str | None:
    """What git prints, or None if it fails or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

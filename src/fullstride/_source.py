"""Which source this is, for measurements that others should be able to repeat."""

import subprocess
from pathlib import Path

from . import __version__


def commit() -> str:
    """The commit of the checkout this package runs from, "-changed" if files differ; else "version 0.1.0"."""
    package = Path(__file__).resolve().parent
    # An environment may lie inside somebody else's repository, whose commit says nothing about this package.
    if _git(package, "rev-parse", "--show-prefix") != "src/fullstride/":
        return f"version {__version__}"
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return (_git(package, "rev-parse", "--short=12", "HEAD") or "no commit") + ("-changed" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""

"""Takes results anew on this machine: `make bench`, or

    python -m benchmarks.take [SUITE ...]
    python -m benchmarks.take steps:fastspeech2     # of a suite, the commands with this word; other parts stay

Each command of a suite runs in a process of its own and writes JSON; a suite becomes a file of benchmarks/results when
all its commands are done. Only from a tree without uncommitted changes: else nobody could tell what was measured. Then
`make performance` shows the new figures in README.md and docs/performance.md. Leave the machine alone meanwhile; how
much others used it is recorded.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import result_files
from .result_files import ROOT, File
from .stale import git
from .suites import SUITES, Suite

_CHANGES_WHAT_RUNS = (
    "FULLSTRIDE_HEAP", "FULLSTRIDE_ISA", "FULLSTRIDE_LIBRARY", "FULLSTRIDE_NATIVE", "FULLSTRIDE_PRECISION",
    "FULLSTRIDE_WITHOUT",
)  # fmt: skip
_QUIET = 0.2  # cores that the system and its services may use


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, known: dict[str, Suite] = SUITES) -> None:
    parser = argparse.ArgumentParser(prog="take", description="Takes results anew on this machine.")
    usual = [name for name, suite in known.items() if suite.usual]
    there_are = f"of {', '.join(known)} (default: {', '.join(usual)})"
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=there_are)
    names = list(dict.fromkeys(parser.parse_args(arguments).suites)) or usual
    try:
        take(names, root, known)
    except (ValueError, subprocess.CalledProcessError) as error:
        parser.exit(2, f"take: {error}\n")


def take(names: Sequence[str], root: Path, known: dict[str, Suite]) -> None:
    unknown = [name for name in names if name.partition(":")[0] not in known]
    if unknown:
        raise ValueError(f"expected names of suites, got {', '.join(unknown)}; there are: {', '.join(known)}")
    wanted = {name: _commands(name, known) for name in names}
    check_as_it_comes()
    commit = check_clean(root)
    taken: list[File] = []
    try:
        for name in names:
            taken.append(_suite(name, wanted[name], root, commit))
    finally:
        # Not before the end: a file of results that changed would make the tree of the next suite a changed one.
        for name, file in zip(names, taken, strict=False):
            # Read only now: another word of the same suite may just have been written.
            kept = _others_of(file, root) if ":" in name else []
            whole = file._replace(parts=[*kept, *file.parts])
            print(f"written: {result_files.write(whole, root).relative_to(root)}")
    print("next: make performance")


def check_as_it_comes() -> None:
    """ValueError if something in the environment changes what would be measured."""
    chosen = [name for name in _CHANGES_WHAT_RUNS if name in os.environ]
    if chosen:
        raise ValueError(f"expected Fullstride as it comes, got {', '.join(chosen)} set; unset and run this again")


def check_clean(root: Path) -> str:
    """The commit of the tree, which must be without changes; ValueError tells what to do."""
    status = git(root, "status", "--porcelain")
    commit = git(root, "rev-parse", "HEAD")
    if status is None or commit is None:
        raise ValueError("expected a git clone with a commit, got none; clone the repository and run this there")
    changed = [line[2:].strip() for line in status.splitlines()]
    if changed:
        shown = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        raise ValueError(
            f"expected a tree without uncommitted changes, got {len(changed)} changed or new"
            f" file{'s' * (len(changed) != 1)} ({shown}); commit or stash, then run this again"
        )
    return commit


def _commands(name: str, known: dict[str, Suite]) -> tuple[tuple[str, ...], ...]:
    """Of a suite, or of SUITE:WORD those that have the word among their arguments."""
    suite, _, word = name.partition(":")
    commands = tuple(command for command in known[suite].commands if not word or word in command)
    if not commands:
        raise ValueError(f"expected a word of the commands of suite {suite}, got {word!r}; see benchmarks/suites.py")
    return commands


def _suite(name: str, commands: tuple[tuple[str, ...], ...], root: Path, commit: str) -> File:
    """What the commands find: of SUITE:WORD a part of a file."""
    parts = [_part(command, root, commit) for command in commands]
    machines = {result_files.machine_of(part["conditions"]) for part in parts}
    if len(machines) != 1:
        told = f"expected one kind of machine, got {', '.join(sorted(machines))}"
        raise ValueError(f"suite {name}: {told}; take the whole suite on one machine")
    return File(machines.pop(), name.partition(":")[0], parts)


def _others_of(file: File, root: Path) -> list[dict[str, Any]]:
    """The parts that the file has already and that are not taken anew."""
    there = [old for old in result_files.load_all(root) if old.path == file.path]
    commands = {part["command"] for part in file.parts}
    return [part for old in there for part in old.parts if part["command"] not in commands]


def _part(command: Sequence[str], root: Path, commit: str) -> dict[str, Any]:
    told = shlex.join(command if command[0] == "fullstride" else ["python", "-m", *command])
    print(f"\n$ {told}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        before = _busy_seconds()
        subprocess.run([sys.executable, "-m", *command, "--json", str(path)], cwd=root, check=True)
        after = _busy_seconds()
        found = json.loads(path.read_text())
    recorded = found["conditions"]["commit"]
    if not commit.startswith(recorded):
        raise ValueError(
            f"{told}: expected a result of commit {commit[:12]}, got one of {recorded}; let nobody change the tree, and"
            " run from its own .venv"
        )
    others = None if before is None or after is None else round(_others(before, after), 2)
    if others is not None and others > _QUIET:
        print(f"note: others used {others} cores meanwhile: these figures are of a busy machine")
    load = round(os.getloadavg()[0], 1)
    return result_files.part(told, found, load_at_end=load, cores_used_by_others=others)


def _others(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    """How many cores were busy with something else than our command, on average."""
    passed, machine, ours = (late - early for early, late in zip(before, after, strict=True))
    return max(0.0, (machine - ours) / passed)


def _busy_seconds() -> tuple[float, float, float] | None:
    """(time, seconds that the machine's cores have worked, seconds of our children), where the system tells it."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _, _, irq, soft, *_ = (int(word) for word in words[1:])
    worked = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return os.times().elapsed, worked, children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()

"""Writes what documents show of the results: `make performance`, or python -m benchmarks.render

A document marks where:

    <!-- begin: steps avx2 -->
    <!-- end -->

What stands between is replaced by the block of that name (blocks()): of a kind of CPU, of a machine by the name of its
folder, or, with neither, of every machine that there are results of. Pictures are drawn where matplotlib is there. Then
it prints which results are stale. Needs neither torch nor a network, and writes the same for the same results.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import cells, claim_tables, kernel_tables, machine_tables, result_files, roofline_points, stale, tables
from .distributed import tables as distributed_tables
from .result_files import ROOT, File
from .suites import SUITES

INDEX = Path("benchmarks") / "results" / "README.md"
DOCUMENTS = (
    Path("README.md"), Path("docs") / "performance.md", Path("docs") / "distributed.md",
    Path("benchmarks") / "thresholds.md", Path("src") / "fullstride" / "rewriting" / "README.md",
)  # fmt: skip
BLOCK = re.compile(r"(<!-- begin: ([\w -]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# Block of one machine or kind of CPU -> the suites that it shows.
OF_MACHINES: dict[str, tuple[machine_tables.Block, tuple[str, ...]]] = {
    "steps": (tables.steps, ("steps",)),
    "compared": (tables.compared, ("recipes",)),
    "losses": (tables.losses, ("steps",)),
    "trainer": (tables.trainer, ("trainer",)),
    "curves": (tables.curves, ("llama_curves",)),
    "profile": (tables.profile, ("llama_profile",)),
    "speech_profile": (tables.speech_profile, ("fastspeech2_profile",)),
    "clip_profile": (tables.clip_profile, ("clip_profile",)),
    "mechanisms": (tables.mechanisms, ("mechanisms",)),
    "thresholds": (tables.thresholds, ("thresholds",)),
    "kernels": (kernel_tables.of_machine, tuple(kernel_tables.SUITES)),
    "processes": (distributed_tables.processes, ("processes",)),
    "averaging": (distributed_tables.averaging, ("averaging",)),
    "sharding": (distributed_tables.sharding, ("sharding",)),
    "links": (distributed_tables.links, ("two_hosts",)),
    "ahead": (distributed_tables.ahead, ("two_hosts",)),
    "local_updates": (distributed_tables.local_updates, ("local_updates",)),
}
_INDEX_HEAD = """\
# Results

Written by `make performance`; `make bench` takes results anew. One file a kind of CPU and suite, one line a command.
All of them are of a tree without changes. "stale" is of the day when this page was written: run `make performance` to
see it for your tree.
"""
Findings = dict[tuple[str, str], list[list[stale.Finding]]]  # machine and suite -> of each part


def blocks(files: list[File]) -> dict[str, Callable[[], list[str]]]:
    """Name of a block -> its lines."""
    found: dict[str, Callable[[], list[str]]] = {
        "gain": partial(tables.gain, files),
        "machines": partial(machine_tables.machines, files),
        "recipes": partial(machine_tables.recipes, files),
        "claims": partial(claim_tables.claims, files),
        "roofline": partial(machine_tables.pictures, files, Path("images"), partial(_picture, files)),
    }
    places = [*cells.KINDS, *machine_tables.names(files)]
    for name, (block, suites) in OF_MACHINES.items():
        found[name] = partial(machine_tables.each, block, suites, files)
        found |= {f"{name} {where}": partial(block, files, where) for where in places}
    return found


def _picture(files: list[File], machine: str) -> str:
    return roofline_points.file_name(machine) if roofline_points.has_picture(files, machine) else ""


def rendered(text: str, files: list[File]) -> str:
    """The document with its blocks made anew."""
    known = blocks(files)

    def block(match: re.Match[str]) -> str:
        begin, name, _, end = match.groups()
        if name not in known:
            raise ValueError(f"expected the name of a block, got {name!r}; there are: {', '.join(known)}")
        return begin + "\n" + "\n".join(known[name]()) + "\n\n" + end

    return BLOCK.sub(block, text)


def index(files: list[File], findings: Findings) -> str:
    """Which file holds what, of which commit and date."""
    lines = [_INDEX_HEAD, *cells.table(["file", "holds", "command", "commit", "date", "load", "torch", "stale"])]
    for file in files:
        for part, found in zip(file.parts, findings[file.machine, file.suite], strict=True):
            facts = part["conditions"]
            holds = SUITES[file.suite].holds if file.suite in SUITES else file.suite
            row = [
                f"[{file.machine}/{file.suite}.json]({file.machine}/{file.suite}.json)", holds, f"`{part['command']}`",
                result_files.commit_of(part)[:7], result_files.date_of(part), f"{facts['load']:g}", str(facts["torch"]),
                _summary(found),
            ]  # fmt: skip
            lines.append(cells.line(row))
    return "\n".join(lines) + "\n"


def _summary(found: list[stale.Finding]) -> str:
    """In a word, and of what, where only a few of many are stale."""
    words = {finding.what: finding.state.partition(":")[0] or "no" for finding in found}
    kinds = sorted(set(words.values()))
    if len(kinds) == 1:
        return {"stale": "yes"}.get(kinds[0], kinds[0])
    parts = []
    for kind in kinds:
        names = [what for what, word in words.items() if word == kind]
        parts.append(f"{kind}: {', '.join(names)}" if len(names) <= 3 else f"{kind}: {len(names)} of {len(words)}")
    return "; ".join(parts)


def main(root: Path = ROOT) -> None:
    try:
        files = result_files.load_all(root)
        texts = {path: rendered((root / path).read_text(), files) for path in DOCUMENTS if (root / path).exists()}
    except ValueError as error:
        sys.exit(f"render: {error}")
    findings: Findings = {(file.machine, file.suite): stale.findings(file, root) for file in files}
    texts[INDEX] = index(files, findings)
    for path, text in texts.items():
        before = (root / path).read_text() if (root / path).exists() else None
        (root / path).write_text(text)
        print(f"{'as it was' if text == before else 'written'}: {path}")
    _draw(files, root)
    print("\nresults that are not of this tree:")
    for file in files:
        for found in findings[file.machine, file.suite]:
            for finding in found:
                if finding.state:
                    print(f"  {file.machine} {file.suite}, {finding.what}: {finding.state}")
    print("take them anew on such a CPU: make bench, or python -m benchmarks.take SUITE ...")


def _draw(files: list[File], root: Path) -> None:
    """Pictures need matplotlib and the report of the package; tables need neither."""
    try:
        from . import roofline
        from .distributed import pictures

        for path in (*roofline.write_all(files, root), *pictures.write_all(files, root)):
            print(f"drawn: {path}")
    except (ImportError, ValueError) as error:
        print(f"pictures are as they were: {error}; .venv/bin/python -m benchmarks.roofline draws them")


if __name__ == "__main__":
    main()

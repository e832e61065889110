"""The files of results: benchmarks/results/<cpu>-<isa>/<suite>.json, one a kind of machine and suite.

    {"suite": NAME, "parts": [{"command": ..., "conditions": {...}, ...what the command found}]}

A part is what one command found. Parts of a suite may be of different commits: an expensive one need not be taken
anew because a cheap one was. `conditions` says on what, when and from which commit; null stands for what nobody
recorded. Without torch: whoever only reads results need not have it.
"""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("benchmarks") / "results"  # in a checkout
# What every part records, in this order. load: of the last minute before; at the end our own threads are part of it.
CONDITIONS = (
    "cpu", "usable_cores", "threads", "isa", "best_isa", "torch", "python", "heap", "commit", "date",
    "load", "load_at_end", "cores_used_by_others",
)  # fmt: skip
_CHANGED = "-changed"  # how fullstride._source ends the commit of a tree with uncommitted changes
_MACHINE_PATH = re.compile(r"(?<![\w./~-])(?:/[\w.+@~-]+){2,}/?|~/[\w./+@-]+")
_FLAT_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")


class Spread(NamedTuple):
    """Of the rounds. None: not recorded."""

    median: float
    lowest: float | None = None
    highest: float | None = None


class File(NamedTuple):
    machine: str  # name of the folder: amd-epyc-avx2
    suite: str
    parts: list[dict[str, Any]]

    @property
    def path(self) -> Path:
        return FOLDER / self.machine / f"{self.suite}.json"


def load_all(root: Path = ROOT) -> list[File]:
    """Every file of results, by machine and suite. Refuses one of a tree with changes: nobody can have it again."""
    found = []
    for path in sorted((root / FOLDER).glob("*/*.json")):
        content = json.loads(path.read_text())
        if content.get("suite") != path.stem or not isinstance(content.get("parts"), list):
            told = f"expected suite {path.stem!r} with a list of parts, got something else"
            raise ValueError(f"{path.relative_to(root)}: {told}; take it anew by make bench")
        for part in content["parts"]:
            if str(part["conditions"]["commit"]).endswith(_CHANGED):
                told = f"expected results of a commit, got {part['command']!r} of a tree with changes"
                raise ValueError(f"{path.relative_to(root)}: {told}; take it anew by make bench")
        found.append(File(path.parent.name, path.stem, content["parts"]))
    return found


def write(file: File, root: Path = ROOT) -> Path:
    path = root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"suite": file.suite, "parts": [without_paths(part) for part in file.parts]}, indent=1)
    # Lists of plain values in one line each: a curve of a thousand points is no thousand lines.
    text = _FLAT_LIST.sub(lambda m: "[" + " ".join(line.strip() for line in m[1].splitlines()) + "]", text)
    path.write_text(text + "\n")
    return path


def part(command: str, found: Mapping[str, Any], **conditions: Any) -> dict[str, Any]:
    """What a command wrote, with every condition there is, and null for a spread that it does not tell."""
    known = dict(found["conditions"]) | conditions
    rest = {name: value for name, value in found.items() if name != "conditions"}
    for row in rest.get("results", []):
        if "op" in row:
            row.setdefault("milliseconds_spread", None)
    if "step_ms" in rest:
        rest.setdefault("step_ms_spread", None)
    return {"command": command, "conditions": {name: known.get(name) for name in CONDITIONS}, **rest}


def machine_of(conditions: Mapping[str, Any]) -> str:
    """Name of the folder. The instructions belong to it: a hypervisor may hide what the CPU's name promises."""
    isa = conditions.get("best_isa") or conditions["isa"]  # older results did not record the former
    return re.sub(r"[^a-z0-9_]+", "-", f"{conditions['cpu']} {isa}".lower()).strip("-")


def commit_of(part: Mapping[str, Any]) -> str:
    return str(part["conditions"]["commit"])


def date_of(part: Mapping[str, Any]) -> str:
    return str(part["conditions"]["date"])[:10]


def without_paths(value: Any) -> Any:
    """The same without folders of the machine, which say nothing to others."""
    if isinstance(value, Mapping):
        return {name: without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    return _MACHINE_PATH.sub("PATH", value) if isinstance(value, str) else value


def rows(file: File | None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(part, row) of every result in the file."""
    for part in file.parts if file else ():
        for row in part.get("results", []):
            yield part, row


def newest(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[dict[str, Any], dict[str, Any]]:
    return max(pairs, key=lambda pair: str(pair[0]["conditions"]["date"]))


def spread(values: Any) -> Spread:
    """Of a list of rounds, or of {median, lowest, highest}, or of a number alone."""
    if isinstance(values, Mapping):
        return Spread(values["median"], values["lowest"], values["highest"])
    if isinstance(values, list):
        return Spread(statistics.median(values), min(values), max(values))
    return Spread(float(values))

"""fullstride runs: all runs in a table, or some of them compared."""

import argparse
import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .runs import needs_extra

_HOME = Path("runs")


def add(commands: Any) -> None:
    runs = commands.add_parser(
        "runs",
        help="a table of runs, or some of them compared",
        usage="fullstride runs [FOLDER] [--json]\n       fullstride runs RUN RUN ... [--to FILE] [--json]",
        description="With a folder: a table of the runs in it, the one that changed last at the end. With two runs or"
        " more: what each came to, which fields of their configs differ, and their curves in one page.",
    )
    runs.add_argument("folders", metavar="RUN", nargs="*", type=Path, help="a folder of runs (default: runs/), or runs")
    runs.add_argument(
        "--to", metavar="FILE", type=Path, help="of a comparison: a .html or a .png (default: A-against-B.html here)"
    )
    runs.add_argument("--json", action="store_true", help="print what is known as JSON")
    runs.set_defaults(command=_runs)


def _runs(options: argparse.Namespace) -> int:
    if len(options.folders) > 1:
        return _compare(options)
    if options.to is not None:
        options.parser.error("--to is for comparing: expected two runs or more")
    from ..report import overview

    folders = overview.find(_located(options.folders[0]) if options.folders else _HOME)
    with _warnings_left_out():
        found, broken = overview.look(folders)
    print(json.dumps(overview.as_json(found, broken), indent=2) if options.json else overview.as_text(found, broken))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from ..report import versus

    entries = versus.load([_located(folder) for folder in options.folders])
    wants_page = options.to is not None or not options.json
    target = options.to or Path("-against-".join(entry.name.replace("/", "-") for entry in entries) + ".html")
    if wants_page:
        check_page(target, pictures=True)
        try:
            versus.write(entries, target)
        except ModuleNotFoundError as error:
            raise ValueError(needs_extra(error, "report")) from None
    if options.json:
        print(json.dumps(versus.as_json(entries), indent=2))
    else:
        print(f"{versus.as_text(entries)}\n\ncurves: {target}")
    return 0


@contextlib.contextmanager
def _warnings_left_out() -> Iterator[None]:
    """A line that cannot be read in one of many runs is for the report of that run to tell."""
    logger = logging.getLogger("fullstride")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _located(folder: Path) -> Path:
    """A run may be given by its name alone."""
    return _HOME / folder if not folder.exists() and (_HOME / folder).exists() else folder


def check_page(path: Path, pictures: bool = False) -> None:
    """A page of ours, or a picture if that may be asked for, is replaced; another file is not."""
    if path.suffix not in (".html", ".png")[: 1 + pictures]:
        raise ValueError(f"--to: expected a name that ends with .html{' or .png' if pictures else ''}, got {path}")
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is not a regular file")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: it is not writable; give another name by --to")
    if path.suffix == ".html" and path.exists() and not _is_ours(path):
        raise ValueError(f"{path} is there already, and no page of Fullstride: give another name by --to")


def _is_ours(path: Path) -> bool:
    from ..report import page

    return page.GENERATOR.encode() in path.read_bytes()[:2000]

"""fullstride search: the pictures of a folder that fit a text."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import positive
from .overview import check_page
from .runs import check_which, warnings_alone
from .train import interrupts_held

if TYPE_CHECKING:
    from ..searching import Found, Trained

_SHOWN = 5  # lines of what was skipped
_THUMB = 320  # pixels a side of a picture in the page


def add(commands: Any) -> None:
    search = commands.add_parser(
        "search",
        help="the pictures of a folder that fit a text",
        description="Finds the pictures of a folder that fit a text best, by a model of recipe clip: lines here, and"
        " a page that shows them.",
    )
    search.add_argument("source", metavar="RUN", type=Path, help="the run folder, or the folder of an exported CLIP")
    search.add_argument("text", metavar="TEXT", help="what to look for")
    search.add_argument("--folder", metavar="DIR", type=Path, required=True, help="where the pictures are")
    search.add_argument("--top", metavar="N", type=positive, default=12, help="how many to show (default: 12)")
    search.add_argument("--to", metavar="HTML", type=Path, default=Path("search.html"), help="the page")
    search.add_argument("--no-page", action="store_true", help="lines alone")
    search.add_argument("--json", action="store_true", help="print what was found as JSON")
    search.add_argument("--checkpoint", metavar="WHICH", help="of a run: best (the default), last, or a step")
    search.set_defaults(command=_search)


def _search(options: argparse.Namespace) -> int:
    if options.checkpoint is not None:
        check_which(options.checkpoint)
    if not options.folder.is_dir():
        raise ValueError(f"--folder: expected a folder of pictures, got {options.folder}, which is none")
    if not options.no_page:
        check_page(options.to)
        _check_can_draw()
    from .. import searching
    from ..machine import memory, threads

    searching.check_text(options.text)
    paths = searching.pictures_in(options.folder)
    memory.tune()
    threads.set_threads(None)
    with warnings_alone():
        trained = _load(options.source, options.checkpoint)
    pictures = searching.index(trained, paths, _counter(len(paths)))
    for line in pictures.skipped[:_SHOWN]:
        print(f"fullstride: skipped {line}", file=sys.stderr)
    if len(pictures.skipped) > _SHOWN:
        print(f"fullstride: skipped {len(pictures.skipped) - _SHOWN:,} others", file=sys.stderr)
    found = searching.search(trained, pictures, options.text, options.top)
    if not options.no_page:
        _write_page(options.to, options.text, found, len(pictures.paths))
    if options.json:
        print(json.dumps([{"path": str(one.path), "similarity": one.similarity} for one in found], indent=2))
        return 0
    print("\n".join(f"{one.similarity:6.3f}  {_readable(str(one.path))}" for one in found))
    if not options.no_page:
        print(f"page: {options.to}")
    return 0


def _counter(total: int) -> Callable[[int], None]:
    """On a terminal: how many pictures are done, in a line that is gone in the end."""
    if not sys.stderr.isatty():
        return lambda done: None

    def show(done: int) -> None:
        line = f"{done:,} of {total:,} pictures"
        print(f"\r{line if done < total else ' ' * len(line)}\r", end="", file=sys.stderr, flush=True)

    return show


def _check_can_draw() -> None:
    """Before a folder is read for the page."""
    from ..report import drawing

    try:
        drawing.require_matplotlib()
    except ValueError:
        raise ValueError(
            "the page needs matplotlib: pip install 'fullstride[report]', or leave it by --no-page"
        ) from None


def _readable(name: str) -> str:
    """Of a file; its bytes may be no text at all."""
    return name.encode("utf-8", "backslashreplace").decode()


def _load(source: Path, which: str | None) -> "Trained":
    from ..recipes.clip import files

    with interrupts_held():
        from ..train import evaluation
    if which is not None and files.is_exported(source):
        raise ValueError(f"--checkpoint: expected a run, got {source}, an exported model, which has one; leave it out")
    return files.load(source, lambda: evaluation.find(source, which or "best").tensors["model"])


def _write_page(target: Path, text: str, found: "list[Found]", count: int) -> None:
    from .. import durable
    from ..data.pictures import reading
    from ..report import page
    from ..report.section import Gallery, Picture, Section

    shown = []
    with reading.quiet():
        for one in found:
            pixels = reading.decode(one.path.read_bytes(), _THUMB)
            shown.append(Picture(pixels, _readable(one.path.name), f"similarity {one.similarity:.3f}", True))
    caption = f"The best {len(found)} of {count:,} pictures, best first."
    header = page.plain_header("Search", text, f"Pictures that fit these words, of {count:,}.")
    sections = [Section("Pictures", gallery=Gallery(caption, shown, is_wide=True))]
    durable.replace(target, page.document(f"{text}: search", header, sections).encode())

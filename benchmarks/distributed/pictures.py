"""Pictures of docs/distributed.md, from results alone: `make performance`, or python -m benchmarks.distributed.pictures

    scaling-MACHINE.svg         predicted efficiency over nodes, by link and by what is sent
    local-updates-MACHINE.svg   validation loss over steps, bytes and time, over a slow link
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fullstride.report import drawing, style
from fullstride.report.section import Figure

from .. import result_files
from ..llama_curves_picture import standalone
from ..result_files import ROOT, File

FOLDER = Path("docs") / "images"
RECIPE = "llama"  # of those that were predicted, the one that is shown
_TALL = 6.2  # inches
_LOOKS = (("blue", "-"), ("vermilion", "--"), ("green", "-."), ("purple", ":"), ("amber", "-"))

Draw = Callable[[Any], None]


def write_all(files: list[File], root: Path) -> list[Path]:
    """The pictures that were written; ValueError without matplotlib."""
    drawing.require_matplotlib()
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    kinds = {"two_hosts": ("scaling", scaling), "local_updates": ("local-updates", local_updates)}
    written = []
    for file in files:
        if file.suite in kinds:
            name, draw = kinds[file.suite]
            path = FOLDER / f"{name}-{file.machine}.svg"
            (root / path).write_text(draw(file.parts[-1]))
            written.append(path)
    return written


def scaling(part: dict[str, Any]) -> str:
    rows = [row for row in part["ahead"] if row["recipe"] == RECIPE]
    caption = f"Predicted efficiency over nodes: recipe {RECIPE}, by link and by what is sent."
    return _picture(caption, partial(_scaling, rows), _TALL)


def _scaling(rows: list[dict[str, Any]], canvas: Any) -> None:
    rates = list(dict.fromkeys(row["gigabits"] for row in rows))
    panels = canvas.subplots(len(rates), 1, sharex=True)
    for axes, rate in zip(panels, rates, strict=True):
        for row, (colour, stroke) in zip((row for row in rows if row["gigabits"] == rate), _LOOKS, strict=False):
            shares = [100 * share for share in row["share"]]
            axes.plot(row["nodes"], shares, stroke, marker="o", color=style.LIGHT[colour], label=row["way"])
        axes.set_xscale("log", base=2)
        axes.set(ylim=(0, 104), title=f"{rate} Gbit/s")
        axes.set_xticks(row["nodes"], [str(nodes) for nodes in row["nodes"]])
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:g} %")
    panels[-1].set_xlabel("nodes")
    panels[-1].legend(loc="lower left", fontsize="small")


def local_updates(part: dict[str, Any]) -> str:
    caption = (
        f"Validation loss over steps, megabytes sent and seconds: recipe {part['recipe']}, two hosts, a link of"
        f" {part['mbit']:g} Mbit/s, by what is sent."
    )
    return _picture(caption, partial(_local_updates, part["results"]), _TALL)


def _local_updates(rows: list[dict[str, Any]], canvas: Any) -> None:
    axes_names = {"step": "step", "sent_mb": "megabytes sent by each host", "seconds": "seconds of training steps"}
    panels = canvas.subplots(len(axes_names), 1)
    for axes, (name, title) in zip(panels, axes_names.items(), strict=True):
        for row, (colour, stroke) in zip(rows, _LOOKS, strict=False):
            x, y = [point[name] for point in row["points"]], [point["loss"] for point in row["points"]]
            axes.plot(x, y, stroke, color=style.LIGHT[colour], label=row["side"])
            axes.plot(x[-1:], y[-1:], "o", color=style.LIGHT[colour])
        # A side that fell apart leaves by the upper edge.
        axes.set(xlabel=title, ylabel="loss (nats)", ylim=(None, max(row["points"][0]["loss"] for row in rows)))
        if name == "sent_mb":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panels[-1].legend(loc="upper right", fontsize="small")


def _picture(caption: str, draw: Draw, height: float) -> str:
    return standalone(drawing.draw(Figure(caption, draw, height), number=0))


def main(root: Path = ROOT) -> None:
    try:
        for path in write_all(result_files.load_all(root), root):
            print(f"written: {path}")
    except ValueError as error:
        sys.exit(f"pictures: {error}")


if __name__ == "__main__":
    main()

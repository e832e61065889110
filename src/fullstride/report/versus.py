"""Runs side by side: their curves in one picture, what their configs differ in, and the figures of each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..run_folder.flat import flat
from . import curves, drawing, overview, page, words
from .overview import Summary
from .run import Run, number, read, series
from .section import HEIGHT, WIDTH, Figure, Section, Table
from .style import LIGHT, SERIES

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

Draw = Callable[["Axes"], None]


class Entry(NamedTuple):
    name: str
    run: Run
    summary: Summary


def load(folders: Sequence[Path]) -> list[Entry]:
    """ValueError for what is not a run."""
    runs = [read(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [
        Entry(name, run, overview.summarise(folder, run))
        for name, run, folder in zip(names, runs, folders, strict=True)
    ]


def differences(entries: Sequence[Entry]) -> list[tuple[str, list[str]]]:
    """Fields of the configs that are not the same in all, and their values; "-" where a config has no such field."""
    configs = [flat(entry.run.config) for entry in entries]
    names = list(dict.fromkeys(name for fields in configs for name in fields))
    rows = [(name, [_shown(fields.get(name, "-")) for fields in configs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def facts(entries: Sequence[Entry]) -> list[tuple[str, list[str]]]:
    """What each run came to, a line a fact."""
    summaries = [entry.summary for entry in entries]
    rows = [
        ("recipe", [run.recipe for run in summaries]),
        ("state", [run.state for run in summaries]),
        ("steps", [overview.steps(run) for run in summaries]),
        ("best", [overview.best(run) for run in summaries]),
        ("at step", ["-" if run.best_step is None else f"{run.best_step:,}" for run in summaries]),
        ("last training loss", [_last_loss(entry.run) for entry in entries]),
        ("processes", [str(run.processes) for run in summaries]),
        ("speed", [overview.speed(run) for run in summaries]),
        ("time", [overview.plain(words.duration(run.seconds)) for run in summaries]),
    ]
    return [row for row in rows if row[0] != "processes" or any(run.processes > 1 for run in summaries)]


def as_text(entries: Sequence[Entry]) -> str:
    rows = [("", *(entry.summary.folder for entry in entries))]
    rows += [(label, *values) for label, values in facts(entries)]
    others = differences(entries)
    rows += [("differs", *("" for _ in entries))] if others else []
    rows += [(f"  {name}", *values) for name, values in others]
    text = "\n".join(overview.table(rows, set()))
    return text if others else f"{text}\nthe configs are the same"


def as_json(entries: Sequence[Entry]) -> dict[str, Any]:
    fields = [{"field": name, "values": values} for name, values in differences(entries)]
    return overview.as_json([entry.summary for entry in entries], []) | {"differences": fields}


def write(entries: Sequence[Entry], target: Path) -> None:
    """A page, or by the name's ending a PNG with the curves alone."""
    drawing.require_matplotlib()
    if target.suffix == ".png":
        target.write_bytes(picture(entries))
    else:
        target.write_text(html(entries), encoding="utf-8")


def html(entries: Sequence[Entry]) -> str:
    figures = [Figure(caption, _alone(draw)) for caption, draw in _drawings(entries)]
    if figures:
        curves_section = Section("Curves", "Solid lines: training. Dashed lines with marks: validation.", figures)
    else:
        curves_section = Section("Curves", "No step was logged yet: there is nothing to show.")
    names = [entry.name for entry in entries]
    rows = [(label, *values) for label, values in facts(entries)]
    outcome = Table("What each run came to.", ("", *names), rows, len(names) + 1)
    others = [(name, *values) for name, values in differences(entries)]
    settings = Section("Settings", "" if others else "The configs are the same.")
    if others:
        settings.tables = [Table("Fields whose values differ.", ("field", *names), others, len(names) + 1)]
    outcome_section = Section("Outcome", tables=[outcome])
    title = " against ".join(names) if len(names) == 2 else ", ".join(names)
    header = page.plain_header("Runs compared", title, "")
    return page.document(f"{title}: runs compared", header, [curves_section, outcome_section, settings])


def picture(entries: Sequence[Entry]) -> bytes:
    """All curves as one PNG, two in a row."""
    drawings = _drawings(entries)
    if not drawings:
        raise ValueError("no step was logged in these runs: there are no curves to draw yet")
    rows = -(-len(drawings) // 2)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        every = np.atleast_1d(figure.subplots(rows, 2)).ravel()
        for ax, (caption, draw_one) in zip(every, drawings, strict=False):
            draw_one(ax)
            ax.set_title(caption.rstrip("."))
        for ax in every[len(drawings) :]:
            ax.set_visible(False)

    return drawing.png(draw, 2 * WIDTH, rows * (HEIGHT + 0.3))


def _drawings(entries: Sequence[Entry]) -> list[tuple[str, Draw]]:
    """Loss by step and by time, then every metric that evaluations gave, in the same way."""
    longest = max(entry.run.seconds for entry in entries)
    found = []
    names = dict.fromkeys(name for entry in entries for name in entry.run.metrics())
    for name in ("loss", *names):
        if not any(np.isfinite(series(entry.run.train + entry.run.evals, name)).any() for entry in entries):
            continue
        for over in ("step", "time"):
            found.append((f"{words.label(name).capitalize()} by {over}.", _lines(entries, name, over, longest)))
    return found


def _lines(entries: Sequence[Entry], name: str, over: str, longest: float) -> Draw:
    def draw(ax: "Axes") -> None:
        from matplotlib.lines import Line2D

        every, handles = [], {}
        for i, (who, run, _) in enumerate(entries):
            axis = curves.step_axis(run) if over == "step" else curves.time_axis(run, longest)
            colour = SERIES[i % len(SERIES)]
            trained, validated = series(run.train, name), series(run.evals, name)
            every += [trained, validated]
            if np.isfinite(trained).any() or np.isfinite(validated).any():  # not all runs have the same metrics
                handles[who] = Line2D([], [], color=LIGHT[colour])
            if np.isfinite(trained).any():
                curves.line(ax, axis.of(run.train), trained, colour)
            if np.isfinite(validated).any():
                curves.dots(ax, axis.of(run.evals), validated, colour)
        logarithmic = name == "loss" and curves.spans_decades(*every)
        if logarithmic:
            curves.log_scale(ax)
        if words.is_share(name):
            ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        label = words.label(name) + (", logarithmic" if logarithmic else "")
        curves.finish(ax, axis._replace(resumes=[]), label)
        ax.legend(list(handles.values()), list(handles), loc="best")

    return draw


def _alone(draw: Draw) -> Callable[["matplotlib.figure.Figure"], None]:
    return lambda figure: draw(figure.subplots())


def _last_loss(run: Run) -> str:
    losses = [value for row in run.train if (value := number(row, "loss")) is not None]
    return words.significant(losses[-1]) if losses else "-"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

"""The pictures and the page of `tune`: throughput of every trial, rung by rung; validation loss against time."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...bench.study import Study, as_time
from ...report import curves
from ...report.section import HEIGHT, Figure, Section, Table
from ...report.style import LIGHT
from ...report.words import megabytes, significant
from . import outcome, process_counts

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

_ROW, _AROUND = 0.2, 0.9  # inches
_CAPTION = (
    "{unit} a second: the dot is the median, the line goes from the lowest to the highest of up to 8 parts of the time."
    " Paler: earlier, shorter rungs. Green: taken. Dashed: the default."
)
_LOSS_CAPTION = (
    "Validation loss after so many seconds of training, evaluations not counted. Grey: ended early. Dashed: the"
    " recipe's own values. Green: the best trial."
)


class Row(NamedTuple):
    label: str
    spreads: list[Mapping[str, float]]  # of its rungs
    kind: str = ""  # "header", "taken" or nothing
    note: str = ""


def write(study: Study, content: dict[str, Any]) -> list[Path]:
    rows = rows_of(study.parts, content)
    unit = content["unit"]
    figure = Figure(_CAPTION.format(unit=unit.capitalize()), _alone(_speeds(rows, content)), _height(rows))
    search = content["search"] if content["search"] and content["search"]["trials"] else None
    sections = [_outcome_section(content, study.folder / outcome.CONFIG)]
    sections += [Section("Trials", "", [figure], [_trials_table(study.parts, unit)])]
    if search:
        sections.append(_search_section(search))
    if content["left_out"]:
        table = Table("What was not tried, or could not be.", (), list(content["left_out"].items()))
        sections.append(Section("Left out", tables=[table]))
    recipe = content["recipe"]
    title = f"{recipe}, tuned"
    return study.write_report(title, _lead(content), sections, _picture(rows, content, search))


def _lead(content: dict[str, Any]) -> str:
    parts = [outcome.gain(content)]
    if content["search"]:
        parts.append(content["search"]["stopped"] or outcome.search_gain(content["search"]))
    return "; ".join(parts) + f"; {as_time(content['took'])} of measurements."


# ---- speed -----------------------------------------------------------------------------------------------------------


def rows_of(parts: Mapping[str, Any], content: dict[str, Any]) -> list[Row]:
    """A header for each dimension, and under it its values; the final at the end."""
    found: dict[str, dict[str, list[Any]]] = {}
    for part in parts.values():
        if "dimension" in part:
            found.setdefault(part["dimension"], {}).setdefault(part["label"], []).append(part)
    rows = [Row("default", [content["default"]["units_per_second"]], "taken")] if not found else []
    for dimension, values in found.items():
        rows.append(Row(dimension, [], "header"))
        for label, trials in values.items():
            is_own, kind = _kind(trials[0]["settings"], dimension, content)
            label += ", default" * is_own
            spreads = [trial["units_per_second"] for trial in trials if "failed" not in trial]
            rows.append(Row(label, spreads, kind, next((t["failed"] for t in trials if "failed" in t), "")))
    if content["ratio"]:
        rows.append(Row(f"final, {content['rounds']} rounds", [], "header"))
        for who in ("default", "best"):
            rows.append(Row(who, [content[who]["units_per_second"]], "taken" * (who == content["taken"])))
    return rows


_FIELDS = {
    "precision": "precision", "micro-batch": "micro_batch", "threads": "threads", "workers": "data.workers",
    "threads beside workers": "threads", "processes": "processes", "overlap": "overlap_weight_grads",
}  # fmt: skip


def _kind(tried: Mapping[str, Any], dimension: str, content: dict[str, Any]) -> tuple[bool, str]:
    """Whether the value is the default's, and whether it was taken."""
    name = _FIELDS[dimension]
    own, taken = (tried[name] == content[who]["settings"][name] for who in ("default", content["taken"]))
    return own, "taken" if taken else ""


def _height(rows: Sequence[Row]) -> float:
    return max(HEIGHT, _AROUND + _ROW * len(rows))


def _speeds(rows: Sequence[Row], content: dict[str, Any]) -> Callable[["Axes"], None]:
    def draw(ax: "Axes") -> None:
        for i, row in enumerate(rows):
            colour = LIGHT["green" if row.kind == "taken" else "blue"]
            for rung, spread in enumerate(row.spreads):
                _dot(ax, i, rung, len(row.spreads), spread, colour)
            if row.note and not row.spreads:
                ax.annotate(_short(row.note), (0, i), xytext=(4, 0), textcoords="offset points", va="center",
                            fontsize=8, color=LIGHT["vermilion"])  # fmt: skip
        default = content["default"]["units_per_second"]["median"]
        ax.axvline(default, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (5, 2)), zorder=1)
        ax.set_yticks(range(len(rows)), [row.label for row in rows])
        for text, row in zip(ax.get_yticklabels(), rows, strict=True):
            text.set_color(LIGHT[{"header": "ink", "taken": "green"}.get(row.kind, "muted")])
            text.set_fontweight("bold" if row.kind == "header" else "normal")
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(left=0)
        ax.grid(False, axis="y")
        ax.grid(True, axis="x")
        ax.set_xlabel(f"{content['unit']} a second")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")

    return draw


def _dot(ax: "Axes", row: int, rung: int, num: int, spread: Mapping[str, float], colour: str) -> None:
    alpha = 0.35 + 0.65 * (rung + 1) / num
    y = row + (rung - (num - 1) / 2) * 0.2
    ax.plot([spread["lowest"], spread["highest"]], [y, y], color=colour, linewidth=1.3, alpha=alpha)
    ax.plot([spread["median"]], [y], "o", color=colour, markersize=2.5 + 2 * (rung + 1) / num, alpha=alpha)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _trials_table(parts: Mapping[str, Any], unit: str) -> Table:
    rows = []
    for part in parts.values():
        if "dimension" not in part:
            continue
        where = (part["dimension"], str(part["rung"]), part["label"])
        if "failed" in part:
            rows.append((*where, part["failed"], "-", "-", "-"))
            continue
        rate = part["units_per_second"]
        spread = f"{significant(rate['lowest'])} to {significant(rate['highest'])}"
        peak = "-" if part["peak"] is None else megabytes(part["peak"] / 1e6)
        rows.append((*where, significant(rate["median"], 4), spread, str(part["steps"]), peak))
    columns = ("dimension", "rung", "value", f"{unit}/s", "lowest to highest", "steps", "memory")
    caption = "Every trial; memory: the most its process held, summed over several."
    return Table(caption, columns, rows, 3, fold="All trials")


# ---- search ----------------------------------------------------------------------------------------------------------


def _search_section(found: dict[str, Any]) -> Section:
    rows = []
    for number, trial in enumerate(found["trials"]):
        values = [f"{trial['values'][name]:g}" for name in found["names"]]
        loss = trial["points"][-1][1] if trial["points"] else None
        shown = "-" if loss is None else significant(loss, 4)
        rows.append((_trial_name(number, found), *values, shown, trial["why"] or trial["state"]))
    columns = ("trial", *found["names"], "loss", "state")
    table = Table("Every trial, with the last validation loss it reached.", columns, rows)
    seconds = f"{significant(found['seconds'])} s"
    text = f"{outcome.search_gain(found)}." + f" {outcome.SHORT.format(seconds=seconds)}" * (not found["is_whole"])
    figure = Figure(_LOSS_CAPTION, _alone(_losses(found)))
    return Section("Search", text[:1].upper() + text[1:], [figure], [table])


def _trial_name(number: int, found: dict[str, Any]) -> str:
    return "own values" if number == 0 else f"{number}, the best" if number == found["best"] else str(number)


def _losses(found: dict[str, Any]) -> Callable[["Axes"], None]:
    def draw(ax: "Axes") -> None:
        every = []
        labelled: set[str] = set()
        for number, trial in enumerate(found["trials"]):
            points = np.array([(x, np.nan if y is None else y) for x, y in trial["points"]], float).reshape(-1, 2)
            every.append(points[:, 1])
            style, label = _line_style(number, trial, found)
            ax.plot(points[:, 0], points[:, 1], marker="o", label=None if label in labelled else label, **style)
            labelled.add(label)
        logarithmic = curves.spans_decades(*every)
        if logarithmic:
            curves.log_scale(ax)
        axis = curves.Axis("seconds of training", lambda rows: np.zeros(0), [])
        curves.finish(ax, axis, "validation loss" + ", logarithmic" * logarithmic)
        ax.legend(loc="upper right")

    return draw


def _line_style(number: int, trial: Mapping[str, Any], found: dict[str, Any]) -> tuple[dict[str, Any], str]:
    if number == 0:
        return {"color": LIGHT["ink"], "linestyle": (0, (5, 2)), "zorder": 3}, "the recipe's own values"
    if number == found["best"]:
        return {"color": LIGHT["green"], "linewidth": 2.4, "zorder": 3}, f"the best, trial {number}"
    if trial["state"] == "complete":
        return {"color": LIGHT["blue"], "linewidth": 1.2}, "other trials"
    return {"color": LIGHT["grey"], "linewidth": 1.0, "alpha": 0.45}, "ended early"


# ---- together --------------------------------------------------------------------------------------------------------


def _outcome_section(content: dict[str, Any], config: Path) -> Section:
    changes = [(name, str(was), str(now)) for name, (was, now) in content["changes"].items()]
    tables = [Table("What changes; processes are no field of the config.", ("", "default", "tuned"), changes, 3)]
    gain, inter_op = outcome.gain(content), outcome.inter_op(content).capitalize()
    text = f"{gain[:1].upper()}{gain[1:]}. {outcome.same(content)}\n\n{inter_op}."
    text += f"\n\nNext: {outcome.command(content, config)}"
    return Section("Outcome", text, tables=tables if changes else [])


def _picture(rows: Sequence[Row], content: dict[str, Any], search: dict[str, Any] | None) -> Figure:
    title = f"{content['recipe']}: {outcome.gain(content)}"
    if content["processes"] > 1:
        title += f", in {process_counts.named(content['processes'])}"

    def draw(figure: "matplotlib.figure.Figure") -> None:
        axes = figure.subplots(2, 1, height_ratios=[_height(rows), HEIGHT]) if search else [figure.subplots()]
        _speeds(rows, content)(axes[0])
        if search:
            _losses(search)(axes[1])
        figure.suptitle(title, fontsize=10, x=0.02, ha="left", wrap=True)

    return Figure(title, draw, 0.3 + _height(rows) + (HEIGHT if search else 0))


def _alone(draw: Callable[["Axes"], None]) -> Callable[["matplotlib.figure.Figure"], None]:
    return lambda figure: draw(figure.subplots())

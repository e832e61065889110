"""The page of `fullstride ablate`: both rankings as bars, a table of everything, and what there are no figures of."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench.study import Study
from ...report.section import Figure, Section, Table
from ...report.style import LIGHT
from . import table
from .outcome import FASTER, SAME, SLOWER, UNKNOWN, ranked, verdict
from .switching import ADDED
from .techniques import TECHNIQUES

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

    from ...recipes.config import Config

_COLOURS = {FASTER: "blue", SLOWER: "vermilion", SAME: "grey", UNKNOWN: "grey"}
_BAR, _AROUND = 0.24, 0.75  # inches of a bar, and of what a panel has besides
_BEYOND = 0.25  # of what the medians span: so far beyond them lowest and highest rounds are shown
_BY_ITSELF = "Alone over stock PyTorch"
_WITHIN = "Left out of all that Fullstride does, or added to it"

Part = Mapping[str, Any]


def write(study: Study, config: "Config", outcome: Mapping[str, Any]) -> list[Path]:
    """report.html and picture.png, and their paths."""
    alone, within = (ranked(study.parts, alone=is_alone) for is_alone in (True, False))
    panels = [(title, found) for title, found in ((_BY_ITSELF, alone), (_WITHIN, within)) if found]
    if not panels:
        study.say("no report: no technique was measured")
        return []
    ranking = _figure(panels)
    sections = [
        Section("Ranking", _text(study.parts, outcome), [ranking], []),
        Section("Every technique", tables=[_table(title, found) for title, found in panels]),
        *_without_figures(outcome),
        Section("What each is", tables=[_meanings(study.parts)]),
    ]
    return study.write_report(f"{config.recipe}: what each technique earns", _lead(outcome), sections, ranking)


def _lead(outcome: Mapping[str, Any]) -> str:
    whole, counts = outcome["together"], [entry["verdict"] for entry in outcome["alone"]]
    text = "" if whole is None else f"All together take a step {table.as_ratio(whole)} as fast as stock PyTorch. "
    parts = [f"{counts.count(word)} {word}" for word in (FASTER, SAME, SLOWER, UNKNOWN) if word in counts]
    return text + (f"Alone over it: {', '.join(parts)}." if parts else "")


def _text(parts: Mapping[str, Part], outcome: Mapping[str, Any]) -> str:
    lines = [line for line in table.together(parts, outcome) if line]
    return "\n\n".join(f"{line[:1].upper()}{line[1:].rstrip('.')}." for line in lines)


def _figure(panels: Sequence[tuple[str, Sequence[Part]]]) -> Figure:
    heights = [_AROUND + _BAR * len(found) for _, found in panels]
    caption = (
        "How many times as fast a step is with a technique than without it: the median, and from the lowest to the"
        " highest round, with an arrow where it goes on. Blue: faster. Vermilion: slower. Grey: the rounds do not agree"
        " on a difference, or are too few."
    )
    return Figure(caption, _draw(panels, heights), sum(heights))


def _draw(
    panels: Sequence[tuple[str, Sequence[Part]]], heights: Sequence[float]
) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for ax, (title, found) in zip(axes, panels, strict=True):
            _bars(ax, found)
            ax.set_title(title, loc="left")
        axes[-1].set_xlabel("times as fast with it")

    return draw


def _bars(ax: "Axes", found: Sequence[Part]) -> None:
    medians = [1.0, *(part["gain"]["median"] for part in found)]
    spare = _BEYOND * (max(medians) - min(medians)) + 0.02
    left, right = min(medians) - spare, max(medians) + spare  # one disturbed round must not make all bars small
    for place, part in enumerate(found):
        gain, word = part["gain"], verdict(part["gain"], part["rounds"])
        lowest, highest = max(left, gain["lowest"]), min(right, gain["highest"])
        ax.barh(place, gain["median"] - 1, left=1, height=0.62, color=LIGHT[_COLOURS[word]])
        ax.plot([lowest, highest], [place, place], color=LIGHT["ink"], linewidth=1.1)
        for end, is_cut, marker in ((lowest, gain["lowest"] < left, "<"), (highest, gain["highest"] > right, ">")):
            if is_cut:
                ax.plot(end, place, marker, color=LIGHT["ink"], markersize=4)
        ax.annotate(
            f"{gain['median']:.2f}", (max(1.0, highest), place), xytext=(6, 0), textcoords="offset points",
            va="center", fontsize=8.5,
        )  # fmt: skip
    ax.axvline(1, color=LIGHT["grey"], linewidth=0.8)
    ax.set_yticks(range(len(found)), [_label(part) for part in found])
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.margins(x=0.12)
    ax.grid(False, axis="y")
    ax.grid(True, axis="x")


def _label(part: Part) -> str:
    return f"{part['technique']} ({ADDED})" if part["way"] == ADDED else str(part["technique"])


def _table(title: str, found: Sequence[Part]) -> Table:
    rows = [
        (
            _label(part), verdict(part["gain"], part["rounds"]), part["note"], table.as_ratio(part["gain"]),
            f"{1e3 * part['seconds_with']['median']:.4g}", table.as_memory(part["memory"]), table.as_loss(part["loss"]),
            f"{part['rounds']} x {part['steps']}",
        )
        for part in found
    ]  # fmt: skip
    columns = (
        "technique", "verdict", "note", "times as fast", "ms a step with it", "memory without -> with",
        "loss without -> with", "rounds x steps",
    )  # fmt: skip
    caption = (
        f"{title}. Median [lowest..highest] of the rounds. Memory: the most that a process held after the same steps."
        " Loss: mean of the last steps, and in brackets how far single steps lie apart."
    )
    return Table(caption, columns, rows, num_text_columns=3)


def _without_figures(outcome: Mapping[str, Any]) -> list[Section]:
    rows = [(name, f"failed: {why}") for name, why in outcome["failed"].items()]
    rows += list(outcome["not_measured"].items())
    if not rows:
        return []
    text = "What could not be measured, or what this recipe has no use for."
    return [Section("Without figures", text, tables=[Table("Why there are none.", (), rows)])]


def _meanings(parts: Mapping[str, Part]) -> Table:
    names = {part["technique"] for part in parts.values() if part.get("technique") in TECHNIQUES}
    rows = [(name, technique.what) for name, technique in TECHNIQUES.items() if name in names]
    return Table("The techniques.", (), rows)

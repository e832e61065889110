"""The picture and the page of `lr-find`: the loss against the rate, and the trainings of the check."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...bench.study import Study
from ...recipes.config import Config
from ...report import curves, words
from ...report.section import HEIGHT, Figure, Section, Table
from ...report.style import LIGHT
from . import outcome
from .span import OWN_DIGITS, as_text

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

_COLOURS = ("blue", "purple", "sky", "amber")  # of repeats; green is the suggestion, vermilion divergence
_CAPTION = (
    "Smoothed training loss against the learning rate, which grows from step to step; a line for each repeat, with its"
    " losses as they were, paler. Green: the suggestion, from the lowest to the highest of the repeats."
    " Dashed: the recipe's own rate. Dots: the lowest loss. Crosses: where a repeat ended because it diverged."
)
_WHY = (
    "At the lowest point what is learnt and what too large a step spoils cancel each other, and the curve is flat:"
    " a little before it, where the curve is still steep, repeats agree."
)


def write(study: Study, config: Config, found: dict[str, Any]) -> list[Path]:
    sweeps = [study.parts[f"range test, seed {repeat['seed']}"] for repeat in found["repeats"]]
    picture = Figure(_CAPTION, _range_test(found, sweeps), HEIGHT)
    sections = [Section("Range test", _text(found), [picture], [_repeats(found, sweeps)])]
    if found["check"] is not None:
        sections.append(_check(study, config, found))
    sections.append(_use(found, config, study.folder))
    headline = outcome.headline(found)
    titled = Figure(_CAPTION, _titled(f"{config.recipe}: {headline}", picture), HEIGHT + 0.2)
    lead = f"{headline[:1].upper()}{headline[1:]}."
    return study.write_report(f"{config.recipe}: the learning rate", lead, sections, titled)


def _text(found: Mapping[str, Any]) -> str:
    span = found["span"]
    how = (
        f"{span['steps']} steps of training in {found['precision']} from fresh weights, at rates from"
        f" {as_text(span['lowest'])} to {as_text(span['highest'])}, each step by the same factor above the last;"
        f" {len(found['repeats'])} times, with other weights and the data in another order."
    )
    ends = outcome.ends(found)
    left_out = "".join(f" Left out: {text}." for text in found["left_out"])
    text = f"{how} {ends[:1].upper()}{ends[1:]}.{left_out}\n\nThe suggestion is {found['rule']}. {_WHY}"
    return text if found["rate"] is not None else f"{outcome.headline(found).capitalize()}.\n\n{text}"


def _repeats(found: Mapping[str, Any], sweeps: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for repeat, part in zip(found["repeats"], sweeps, strict=True):
        end = "-" if repeat["diverged"] is None else f"{as_text(repeat['diverged'])}: {repeat['why']}"
        suggestion = repeat["why_not"] or as_text(repeat["suggestion"])
        lowest = f"{words.significant(repeat['lowest_loss'], 4)} at {as_text(repeat['lowest_at'])}"
        counts = (str(len(part["losses"])), str(repeat["skipped"]))
        rows.append((str(repeat["seed"]), suggestion, lowest, end, *counts))
    caption = "Every repeat; skipped: steps whose gradient was not finite, which were taken again."
    columns = ("seed", "suggestion", "lowest smoothed loss", "diverged", "steps", "skipped")
    return Table(caption, columns, rows, 4, _colours(len(rows)))


def _use(found: Mapping[str, Any], config: Config, folder: Path) -> Section:
    commands = outcome.commands(found, config, folder)
    if not commands:
        return Section("How to use it", "There is nothing to use: no rate was found.")
    return Section("How to use it", tables=[Table("Any of these.", ("command",), [(each,) for each in commands])])


def _colours(num: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(num)]


# ---- the range test --------------------------------------------------------------------------------------------------


def _range_test(
    found: Mapping[str, Any], sweeps: Sequence[Mapping[str, Any]]
) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        ax.set_xscale("log")
        for repeat, part, colour in zip(found["repeats"], sweeps, _colours(len(sweeps)), strict=True):
            _curve(ax, repeat, part, LIGHT[colour])
        ax.set_ylim(*_limits(found))
        ax.set_xlim(found["span"]["lowest"], found["span"]["highest"])
        _mark_rates(ax, found)
        ax.set_xlabel("learning rate")
        ax.set_ylabel("training loss")
        ax.xaxis.set_major_formatter(lambda rate, _: as_text(rate))

    return draw


def _curve(ax: "Axes", repeat: Mapping[str, Any], part: Mapping[str, Any], colour: str) -> None:
    rates, smooth = np.array(part["rates"]), np.array(repeat["smooth"])
    ax.plot(rates, part["losses"], color=colour, linewidth=0.7, alpha=0.3)
    ax.plot(rates, smooth, color=colour)
    lowest = int(smooth.argmin())
    ax.plot(rates[lowest], smooth[lowest], "o", color=colour, markersize=5, zorder=4)
    if repeat["diverged"] is not None:
        ax.plot(rates[-1], smooth[-1], "x", color=LIGHT["vermilion"], markersize=7, mew=2, zorder=4)


def _limits(found: Mapping[str, Any]) -> tuple[float, float]:
    """All smoothed curves, and some room: single losses of the end may be a thousand times as high."""
    every = np.concatenate([repeat["smooth"] for repeat in found["repeats"]])
    low, high = float(every.min()), float(every.max())
    room = 0.08 * (high - low) or 0.1
    return low - room, high + 2.5 * room


def _mark_rates(ax: "Axes", found: Mapping[str, Any]) -> None:
    _mark(ax, found["own"], "ink", f"recipe {as_text(found['own'], OWN_DIGITS)}", found["rate"], (0, (4, 2)))
    if found["rate"] is None:
        return
    spread = found["suggestion"]
    ax.axvspan(spread["lowest"], spread["highest"], color=LIGHT["green"], alpha=0.15, linewidth=0)
    _mark(ax, found["rate"], "green", f"suggestion {as_text(found['rate'])}", found["own"], "solid")


def _mark(ax: "Axes", rate: float, colour: str, text: str, other: float | None, stroke: Any) -> None:
    """A line with its name, on the side where the other one is not; nothing for a rate that was not tried."""
    low, high = ax.get_xlim()
    if not low <= rate <= high:
        return
    ax.axvline(rate, color=LIGHT[colour], linewidth=1.4, linestyle=stroke, zorder=3)
    is_right = other is not None and rate > other
    is_right = is_right or (rate == other and colour == "ink")
    ax.annotate(
        text, (rate, 1), xycoords=("data", "axes fraction"), xytext=(4 if is_right else -4, -2),
        textcoords="offset points", ha="left" if is_right else "right", va="top", color=LIGHT[colour],
        fontweight="bold", fontsize=9, bbox=curves.LABEL, zorder=5,
    )  # fmt: skip


def _titled(title: str, figure: Figure) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(canvas: "matplotlib.figure.Figure") -> None:
        figure.draw(canvas)
        canvas.suptitle(title, fontsize=10, x=0.02, ha="left", wrap=True)

    return draw


# ---- the check -------------------------------------------------------------------------------------------------------


def _check(study: Study, config: Config, found: Mapping[str, Any]) -> Section:
    trainings = [part for name, part in study.parts.items() if name in found["check"]["parts"]]
    lines = outcome.checked(found)
    text = f"The recipe was trained with both rates, by its own schedule over these steps. Verdict: {lines[-1]}."
    rows = []
    for part in trainings:
        loss = part["why"] if part["loss"] is None else f"{part['loss']:.4f}"
        rows.append((as_text(part["rate"], OWN_DIGITS), str(part["seed"]), loss))
    caption = "Every training, from the same weights on the same data for each seed."
    table = Table(caption, ("rate", "seed", "validation loss at the end"), rows)
    drawn = Figure("Training loss of the check. Green: the rate that was found. Dashed: the recipe's own.",
                   _trainings(trainings, found))  # fmt: skip
    return Section("Check", text, [drawn], [table])


def _trainings(
    trainings: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        labels = set()
        for part in trainings:
            is_own = part["rate"] == found["own"]
            label = f"{'recipe' if is_own else 'found'}, {as_text(part['rate'], OWN_DIGITS)}"
            losses = np.array(part["losses"], float)
            window = max(1, len(losses) // 20)
            ax.plot(
                part["steps"], curves.smooth(losses, window), color=LIGHT["ink" if is_own else "green"],
                linestyle=(0, (4, 2)) if is_own else "solid", label=None if label in labels else label,
            )  # fmt: skip
            labels.add(label)
        curves.finish(ax, curves.Axis("step", lambda rows: np.zeros(0), []), "training loss, smoothed")
        ax.legend(loc="upper right")

    return draw

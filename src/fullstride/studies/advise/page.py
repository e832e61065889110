"""The page of `fullstride advise`: the step in parts beside the real one, the roofline, every pass, what to change."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...machine.memory import as_size
from ...report.section import Figure, Section, Table
from ...report.style import LIGHT
from . import devices, text
from .prediction import ATTENTION, CALLS, KINDS, OPTIMIZER, PASSES, PRODUCTS

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

_COLOURS = {PRODUCTS: "blue", ATTENTION: "sky", PASSES: "amber", OPTIMIZER: "green", CALLS: "purple"}
_MARKS = {PRODUCTS: "o", ATTENTION: "D", PASSES: "s"}
_BARS_HEIGHT, _ROOFLINE_HEIGHT = 1.9, 3.4  # inches


def title(content: Mapping[str, Any]) -> str:
    return f"{content['recipe']}: what bounds a training step"


def lead(content: Mapping[str, Any]) -> str:
    first = text.bottleneck(content)[0]
    return f"{first[:1].upper()}{first[1:]}."


def sections(content: Mapping[str, Any]) -> list[Section]:
    return [
        Section("The step", _paragraphs(text.checked(content)), [_bars(content)], [_kinds(content)]),
        Section("Roofline", _paragraphs(text.bottleneck(content)), [_roofline(content)]),
        Section("What to change", tables=[_changes(content)]) if content["changes"]
        else Section("What to change", "Nothing that was looked at."),
        Section("Memory and energy", _paragraphs(text.energy(content["energy"])), tables=[_memory(content)]),
        Section("Other devices", tables=_devices(content), text=_devices_text(content)),
        Section("Every pass", tables=[_passes(content)]),
    ]  # fmt: skip


def picture(content: Mapping[str, Any]) -> Figure:
    """Both drawings, one above the other."""

    def draw(figure: "matplotlib.figure.Figure") -> None:
        above, below = figure.subplots(2, 1, height_ratios=[_BARS_HEIGHT, _ROOFLINE_HEIGHT])
        _draw_bars(above, content)
        _draw_roofline(below, content)

    caption = f"{_bars(content).caption} {_roofline(content).caption}"
    return Figure(caption, draw, _BARS_HEIGHT + _ROOFLINE_HEIGHT)


def _paragraphs(lines: Sequence[str]) -> str:
    sentences = [line.strip() for line in lines if line.strip()]
    return "\n\n".join(f"{line[:1].upper()}{line[1:].rstrip('.')}." for line in sentences)


# ---- figures ---------------------------------------------------------------------------------------------------------


def _bars(content: Mapping[str, Any]) -> Figure:
    real = "" if content["check"] is None else " Below: the measured step, median, and from the lowest to the highest."
    caption = f"The predicted step by what it consists of, in milliseconds.{real}"
    return Figure(caption, lambda figure: _draw_bars(figure.subplots(), content), _BARS_HEIGHT)


def _draw_bars(ax: "Axes", content: Mapping[str, Any]) -> None:
    from matplotlib.patches import Patch

    found, checked = content["prediction"], content["check"]
    left = 0.0
    for kind, seconds in found["by_kind"].items():
        ax.barh(0, 1e3 * seconds, left=left, height=0.6, color=LIGHT[_COLOURS[kind]])
        left += 1e3 * seconds
    labels = [f"predicted\n{left:.4g} ms"]
    if checked is not None:
        ms = checked["milliseconds"]
        ax.barh(1, ms["median"], height=0.6, color=LIGHT["grey"])
        ax.plot([ms["lowest"], ms["highest"]], [1, 1], color=LIGHT["ink"], linewidth=1.3)
        labels.append(f"measured\n{ms['median']:.4g} ms")
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(False, axis="y")
    ax.grid(True, axis="x")
    ax.set_xlabel("ms a step")
    handles = [Patch(color=LIGHT[_COLOURS[kind]], label=KINDS[kind]) for kind in found["by_kind"]]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.42, 1.0), ncols=2, fontsize=8.5)


def _roofline(content: Mapping[str, Any]) -> Figure:
    caption = (
        "The roofline: GFLOP/s against the operations a byte. The line is what this machine reaches at best, by its"
        " bandwidth on the left and by its products on the right. Each mark is a kind of product or attention, larger"
        " the longer it takes; the star is the whole step, passes without products and the optimizer included."
    )
    return Figure(caption, lambda figure: _draw_roofline(figure.subplots(), content), _ROOFLINE_HEIGHT)


def _draw_roofline(ax: "Axes", content: Mapping[str, Any]) -> None:
    found = content["prediction"]
    peak, bandwidth = found["peak_gflops"], found["bandwidth_gbs"]
    lines = [line for line in found["lines"] if line["flops"] and line["nbytes"] and line["seconds"]]
    for line in lines:
        size = 16 + 500 * line["seconds"] / found["seconds"]
        ax.scatter(
            line["flops"] / line["nbytes"], line["flops"] / line["seconds"] / 1e9, s=size, alpha=0.8, linewidths=0,
            marker=_MARKS.get(line["kind"], "s"), color=LIGHT[_COLOURS[line["kind"]]],
        )  # fmt: skip
    whole = found["flops"] / max(1, found["bytes"]), found["flops"] / found["seconds"] / 1e9
    ax.scatter(*whole, marker="*", s=170, color=LIGHT["vermilion"], zorder=3)
    style: Any = {"fontsize": 9, "textcoords": "offset points"}
    ax.annotate("the step", whole, xytext=(0, -17), ha="center", color=LIGHT["vermilion"], **style)
    places = [line["flops"] / line["nbytes"] for line in lines] + [whole[0], peak / bandwidth]
    low, high = 0.5 * min(places), 2.5 * max(places)
    ax.plot([low, peak / bandwidth, high], [low * bandwidth, peak, peak], color=LIGHT["ink"], linewidth=1.4)
    style |= {"color": LIGHT["muted"]}
    ax.annotate(f"{peak:,.0f} GFLOP/s", (high, peak), xytext=(-4, 4), ha="right", **style)
    ax.annotate(f"{bandwidth:,.0f} GB/s", (low, low * bandwidth), xytext=(8, -2), va="top", **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    rates = [line["flops"] / line["seconds"] / 1e9 for line in lines] + [whole[1]]
    ax.set_ylim(0.5 * min([*rates, low * bandwidth]), 2.5 * peak)
    ax.set_xlim(low, high)
    ax.grid(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")  # within a decade they would be powers, as TeX
    ax.set_xlabel("FLOP a byte")
    ax.set_ylabel("GFLOP/s")


# ---- tables ----------------------------------------------------------------------------------------------------------


def _kinds(content: Mapping[str, Any]) -> Table:
    found = content["prediction"]
    rows = [
        (KINDS[kind], f"{1e3 * seconds:.2f}", text.percent(seconds / found["seconds"]))
        for kind, seconds in found["by_kind"].items()
    ]
    rows.append(("all", f"{1e3 * found['seconds']:.2f}", text.percent(1.0)))
    caption = "The predicted step: operations by the measured rates of its own products, bytes by measured bandwidths."
    return Table(caption, ("part", "ms a step", "share"), rows, colours=[_COLOURS[kind] for kind in found["by_kind"]])


def _changes(content: Mapping[str, Any]) -> Table:
    rows = [(entry["options"], _verdict(entry), *_figures(entry)) for entry in content["changes"]]
    caption = "Predicted by the same formula, with the rates of the changed sizes measured; nothing was trained."
    return Table(caption, ("change", "why", "samples a second", "ms a step", "memory"), rows, num_text_columns=2)


def _verdict(entry: Mapping[str, Any]) -> str:
    line = text.change_line(entry)
    return str(entry["why"]) if entry["why"] in line else line.partition(": ")[2]


def _figures(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    if entry["trouble"]:
        return "-", "-", "-"
    memory = as_size(entry["memory"]) + ("" if entry["fits"] else ", too much")
    return f"{entry['gain']:.2f}x", f"{1e3 * entry['seconds']:.4g}", memory


def _memory(content: Mapping[str, Any]) -> Table:
    memory, checked = content["memory"], content["check"]
    rows = [(name, as_size(size)) for name, size in memory["parts"].items()]
    rows += [("predicted in all", as_size(memory["bytes"])), ("there is", as_size(memory["available"]))]
    if checked is not None and checked["peak_bytes"] is not None:
        rows.append(("held at most in the short run", as_size(checked["peak_bytes"])))
    return Table("Memory, as --dry-run estimates it, without what a checkpoint is written from.", (), rows)


def _devices_text(content: Mapping[str, Any]) -> str:
    if content["devices"] is None:
        return _paragraphs([devices.NONE if content["looked_for_devices"] else "not looked for"])
    return _paragraphs(devices.lines(content["devices"]))


def _devices(content: Mapping[str, Any]) -> list[Table]:
    found = content["devices"]
    if found is None:
        return []
    rows = [
        (str(row["samples"]), f"{1e3 * row['cpu_seconds']:.4g}", f"{1e3 * row['device_seconds']:.4g}")
        for row in found["rows"]
    ]
    return [Table("A training step, median, in ms.", ("samples", "CPU, prepared", found["device"]), rows, 0)]


def _passes(content: Mapping[str, Any]) -> Table:
    found = content["prediction"]
    rows = []
    for line in found["lines"]:
        *numbers, limit, near, what = text.cells(line, found["seconds"])
        rows.append((what, limit, *numbers, near))
    columns = ("what", "limit", "ms", "share", "calls", "GFLOP/s", "GB/s", "of the limit")
    caption = "Every kind of pass of a step, predicted: the limit that binds it, and how near to it it comes."
    return Table(caption, columns, rows, num_text_columns=2, fold="Every pass")

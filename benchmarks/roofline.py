"""The roofline of each machine, from its results alone: `make performance`, or python -m benchmarks.roofline

What a machine can compute of work that has so many operations for each byte is limited by its memory on the left and by
its rate of products on the right. Dots are steps of the models (ours, and stock PyTorch's as rings) and kernels that
multiply; kernels that only wait for memory have no operations to speak of and stand below, by their share of the
bandwidth. roofline_points.py says how bytes are counted. Needs matplotlib and no torch; the same results give the same
picture.
"""

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fullstride.report import drawing, style
from fullstride.report.section import WIDTH, Figure

from . import machine_tables, result_files
from .cells import number
from .llama_curves_picture import standalone
from .place_labels import Box, place
from .result_files import ROOT, File
from .roofline_points import Content, Point, Share, content_of, file_name, has_picture
from .roofs import Roofs

FOLDER = Path("docs") / "images"
_LEFT, _RIGHT, _TOP, _BOTTOM, _BETWEEN = 0.62, 0.12, 0.1, 0.5, 0.62  # inches around and between the panels
_HIGH, _LINE = 3.7, 0.17  # inches: of the roofline, and of each kernel below it
_FONT, _STROKE = 7.5, 1.1  # points
_PIECES = 40  # of a line, to keep names off it
_STEP, _STOCK, _KERNEL = "blue", "grey", "vermilion"


def write_all(files: list[File], root: Path) -> list[Path]:
    """The pictures that were written, of every machine with steps or kernels; ValueError without matplotlib."""
    drawing.require_matplotlib()
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    written = []
    for machine in machine_tables.names(files):
        if has_picture(files, machine):
            path = FOLDER / file_name(machine)
            (root / path).write_text(draw(content_of(files, machine)))
            written.append(path)
    return written


def draw(content: Content) -> str:
    """SVG, in the colours of the reader's scheme."""
    ops = list(dict.fromkeys(share.op for share in content.shares))
    below = _BETWEEN + _LINE * (len(ops) + 1) if ops else 0.0
    height = _TOP + _HIGH + _BOTTOM + below
    figure = Figure(caption_of(content), partial(_panels, content, ops, height), height)
    return standalone(drawing.draw(figure, number=0))


def caption_of(content: Content) -> str:
    rates = [f"{name} products {number(rate.median)} GFLOP/s" for name, rate in content.roofs.products.items()]
    rates += [f"memory, {mix}, {number(rate.median)} GB/s" for mix, rate in content.roofs.bandwidths.items()]
    missing = [] if content.roofs.bandwidths else ["no bandwidth was measured"]
    missing += [f"bytes of {'; '.join(content.without)} were not counted"] if content.without else []
    return f"Roofline of {content.title}: {', '.join([*rates, *missing])}."


def _panels(content: Content, ops: list[str], height: float, canvas: Any) -> None:
    canvas.set_layout_engine("none")  # places are computed here, to put labels between the dots

    def axes(left: float, top: float, high: float) -> Any:
        wide = WIDTH - left - _RIGHT
        return canvas.add_axes((left / WIDTH, 1 - (top + high) / height, wide / WIDTH, high / height))

    _roofline(axes(_LEFT, _TOP, _HIGH), content)
    if ops:
        left = 0.2 + Box.of(max(ops, key=len), 0, 0, _FONT).right / 72
        _bandwidth(axes(left, _TOP + _HIGH + _BETWEEN, _LINE * (len(ops) + 1)), content.shares, ops)


# ---- operations a byte ---------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """Both axes are logarithmic; places are points (1/72 inch) from the lower left corner of the panel."""

    left: float
    right: float
    bottom: float
    top: float
    width: float = 72 * (WIDTH - _LEFT - _RIGHT)
    height: float = 72 * _HIGH

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = math.log(x / self.left) / math.log(self.right / self.left)
        up = math.log(y / self.bottom) / math.log(self.top / self.bottom)
        return across * self.width, up * self.height

    @property
    def angle(self) -> float:
        """Of a line on which twice as many operations a byte are twice as many a second, in degrees."""
        across, up = math.log(self.right / self.left), math.log(self.top / self.bottom)
        return math.degrees(math.atan2(self.height / up, self.width / across))


def scale_of(content: Content) -> Scale:
    """With all points in it, and enough of the slopes to be seen."""
    points = [*content.steps, *content.stock, *content.kernels]
    peak = max(rate.median for rate in content.roofs.products.values())
    ridges = [peak / rate.median for rate in content.roofs.bandwidths.values()]
    lefts = [point.intensity / 2 for point in points] + [ridge / 6 for ridge in ridges]
    rights = [point.intensity * 2.5 for point in points] + [ridge * 20 for ridge in ridges]
    rates = [point.gflops for point in points]
    return Scale(min(lefts), max(rights), min(peak / 12, *(rate / 2 for rate in rates)), 1.7 * max(peak, *rates))


def _ticks(low: float, high: float) -> list[float]:
    """1, 10, 100, and 2, 5 between them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    between = (1, 2, 5) if high / low < 100 else (1,)
    return [tick for power in powers for tick in (10.0**power * own for own in between) if low <= tick <= high]


def _roofline(axes: Any, content: Content) -> None:
    from matplotlib.ticker import NullLocator

    scale = scale_of(content)
    axes.set(xscale="log", yscale="log", xlim=(scale.left, scale.right), ylim=(scale.bottom, scale.top))
    axes.set(xlabel="operations for each byte that must move (FLOP/byte)", ylabel="GFLOP/s")
    axes.set_xticks(_ticks(scale.left, scale.right), minor=False)
    axes.set_yticks(_ticks(scale.bottom, scale.top), minor=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
    taken = [
        *_peaks(axes, scale, content.roofs), *_slopes(axes, scale, content.roofs), _legend(axes, scale, content),
    ]  # fmt: skip
    best = {point.name: point for point in sorted(content.kernels, key=lambda point: point.gflops)}
    _dots(axes, content.stock, "o", _STOCK, 3.5, filled=False)
    _dots(axes, content.kernels, "s", _KERNEL, 1.8)
    _dots(axes, list(best.values()), "s", _KERNEL, 4.0)
    _dots(axes, content.steps, "o", _STEP, 5.0)
    labels = [(point, _STEP) for point in content.steps] + [(point, _KERNEL) for point in best.values()]
    boxes = place(
        [(point.name, *scale.place(point.intensity, point.gflops)) for point, _ in labels],
        [scale.place(point.intensity, point.gflops) for point in (*content.steps, *content.stock, *content.kernels)],
        (scale.width, scale.height), _FONT, taken,
    )  # fmt: skip
    for (point, colour), box in zip(labels, boxes, strict=True):
        _label(axes, scale, point, colour, box)


def _dots(axes: Any, points: Sequence[Point], marker: str, colour: str, size: float, filled: bool = True) -> None:
    shade = style.LIGHT[colour]
    for point in points:
        face = shade if filled else "none"
        axes.plot([point.intensity], [point.gflops], marker, color=shade, markerfacecolor=face, markersize=size)


def _peaks(axes: Any, scale: Scale, found: Roofs) -> list[Box]:
    """Draws the rates of products; where their names stand."""
    taken = []
    for name, rate in found.products.items():
        begin = min([rate.median / own.median for own in found.bandwidths.values()], default=scale.left)
        axes.plot([begin, scale.right], [rate.median] * 2, color=style.LIGHT["ink"], linewidth=_STROKE)
        text = f"{name} products, {number(rate.median)} GFLOP/s"
        x, y = scale.width - 2, scale.place(scale.left, rate.median)[1] + 1.5
        axes.text(x / scale.width, y / scale.height, text, transform=axes.transAxes, fontsize=_FONT, ha="right",
                  va="bottom", color=style.LIGHT["muted"])  # fmt: skip
        taken.append(Box.of(text, x, y, _FONT, align="right"))
        taken += _along(scale, (begin, rate.median), (scale.right, rate.median))
    return taken


def _along(scale: Scale, start: tuple[float, float], end: tuple[float, float]) -> list[Box]:
    """A line as boxes that no name may lie on."""
    (left, low), (right, high) = scale.place(*start), scale.place(*end)
    shares = [i / _PIECES for i in range(_PIECES)]
    size = (right - left) / _PIECES, max(1.0, (high - low) / _PIECES)
    corners = [(left + share * (right - left), low + share * (high - low)) for share in shares]
    return [Box(x, y, x + size[0], y + size[1]) for x, y in corners]


def _slopes(axes: Any, scale: Scale, found: Roofs) -> list[Box]:
    """The fastest and the slowest mix of reads and writes, the others lie between them; and where they stand."""
    taken: list[Box] = []
    order = sorted(found.bandwidths, key=lambda mix: found.bandwidths[mix].median, reverse=True)
    highest = max(rate.median for rate in found.products.values())
    for mix in dict.fromkeys([*order[:1], *order[-1:]]):
        rate, is_fastest = found.bandwidths[mix].median, mix == order[0]
        left, right = max(scale.left, scale.bottom / rate), highest / rate
        axes.plot([left, right], [rate * left, highest], color=style.LIGHT["ink"], linewidth=_STROKE,
                  linestyle="-" if is_fastest else (0, (4, 2)))  # fmt: skip
        away = 2.5 if is_fastest else -_FONT - 0.5  # above the line, or below it
        across, up = math.cos(math.radians(scale.angle)), math.sin(math.radians(scale.angle))
        offset = 12 * across - away * up, 12 * up + away * across
        axes.annotate(
            f"{mix}, {number(rate)} GB/s", (left, rate * left), xytext=offset,
            textcoords="offset points", rotation=scale.angle, rotation_mode="anchor", fontsize=_FONT,
            color=style.LIGHT["muted"],
        )  # fmt: skip
        taken += _along(scale, (left, rate * left), (right, highest))
    return taken


def _label(axes: Any, scale: Scale, point: Point, colour: str, box: Box) -> None:
    x, y = scale.place(point.intensity, point.gflops)
    nearest = min(max(x, box.left), box.right), min(max(y, box.bottom), box.top)
    if math.dist(nearest, (x, y)) > _FONT:
        ends = zip((x, y), nearest, strict=True)
        line = [[own / size for own in pair] for pair, size in zip(ends, (scale.width, scale.height), strict=True)]
        axes.plot(*line, transform=axes.transAxes, color=style.LIGHT["grey"], linewidth=0.5)
    axes.text(box.left / scale.width, box.bottom / scale.height, point.name, transform=axes.transAxes,
              fontsize=_FONT, va="bottom", color=style.LIGHT[colour])  # fmt: skip


def _legend(axes: Any, scale: Scale, content: Content) -> Box:
    """Draws it; where it stands."""
    from matplotlib.lines import Line2D

    kinds = [
        (content.steps, "step, Fullstride", "o", _STEP), (content.stock, "step, stock default", "o", _STOCK),
        (content.kernels, "kernel (large: its fastest case)", "s", _KERNEL),
    ]  # fmt: skip
    handles = []
    for there, text, marker, colour in kinds:
        if there:
            face = "none" if colour == _STOCK else style.LIGHT[colour]
            settings: dict[str, Any] = {"color": style.LIGHT[colour], "markerfacecolor": face, "label": text}
            handles.append(Line2D([], [], marker=marker, linestyle="none", **settings))
    axes.legend(handles=handles, loc="lower right", fontsize=_FONT)
    longest = max((str(handle.get_label()) for handle in handles), key=len, default="")
    left = Box.of(longest, scale.width - 30, 0, _FONT, align="right").left
    return Box(left, 0, scale.width, 3 + 12 * len(handles))


# ---- share of the bandwidth ----------------------------------------------------------------------------------------


def _bandwidth(axes: Any, found: Sequence[Share], ops: list[str]) -> None:
    order = sorted(ops, key=lambda op: max(share.share for share in found if share.op == op))
    for share in found:
        axes.plot([100 * share.share], [order.index(share.op)], "s", color=style.LIGHT[_KERNEL], markersize=3.0)
    axes.axvline(100, color=style.LIGHT["ink"], linewidth=_STROKE)
    axes.set(xlim=(0, None), ylim=(-0.8, len(order) - 0.2))
    axes.set_xlabel("% of the bandwidth with the same mix of reads and writes")
    axes.set_yticks(range(len(order)), order, fontsize=_FONT)
    axes.grid(visible=True, axis="both")


def main(root: Path = ROOT) -> None:
    try:
        for path in write_all(result_files.load_all(root), root):
            print(f"written: {path}")
    except ValueError as error:
        sys.exit(f"roofline: {error}")


if __name__ == "__main__":
    main()

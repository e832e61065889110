"""What llama_curves.py found, as a picture of its own: an SVG that follows the reader's light or dark scheme."""

import math
import re
from collections.abc import Mapping
from typing import Any

from fullstride.report import drawing, style
from fullstride.report.section import WIDTH, Figure

_HEIGHT = 3.2  # inches
_LOOKS = {"fullstride": ("blue", "-"), "stock": ("vermilion", "--"), "best": ("green", "-.")}
_FROM = 0.1  # the share of the shortest curve that is not shown: the fall from the first loss would hide the rest


def draw(content: Mapping[str, Any]) -> str:
    drawing.require_matplotlib()
    sides = content["sides"]
    longest = max(side["points"][-1]["seconds"] for side in sides)
    unit, scale = ("min", 60.0) if longest >= 180 else ("s", 1.0)

    def curves(canvas: Any) -> None:
        axes = canvas.subplots()
        shown = []
        for side in sides:
            points = [point for point in side["points"] if point["loss"] is not None]
            x, y = [point["seconds"] / scale for point in points], [point["loss"] for point in points]
            colour, stroke = _LOOKS[side["side"]]
            axes.plot(x, y, stroke, color=style.LIGHT[colour], label=_label(side))
            axes.plot(x[-1:], y[-1:], "o", color=style.LIGHT[colour])
            shown += [loss for time, loss in zip(x, y, strict=True) if time >= _FROM * x[-1]]
        low, high = min(shown), max(shown)
        margin = 0.05 * (high - low) or 0.1
        axes.set(xlabel=f"time spent in training steps ({unit})", ylim=(low - margin, high + margin))
        axes.set_xlim(left=0)
        axes.set_ylabel("validation loss (nats)")
        axes.legend(loc="upper right", fontsize="small")

    caption = f"Validation loss over time: recipe {content['recipe']}, by side."
    return standalone(drawing.draw(Figure(caption, curves, _HEIGHT), number=0))


def _label(side: Mapping[str, Any]) -> str:
    name = "Fullstride" if side["side"] == "fullstride" else str(side["name"]).replace("stock", "stock PyTorch", 1)
    compiling = side["compile_seconds"]
    return f"{name}\n+ {compiling:.0f} s of compiling, not shown" if compiling else name


def standalone(markup: str) -> str:
    """A figure of a report as a file of its own, with the report's colours and a ground to lie on."""
    head = re.match(r'<svg role="img" (.*?)viewBox="([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+)">', markup)
    assert head is not None, "expected an SVG of the report"
    left, top, width, height = map(float, head.groups()[1:])
    rules = (
        f":root {{ {style.css_variables(style.LIGHT)} }}"
        f" @media (prefers-color-scheme: dark) {{ :root {{ {style.css_variables(style.DARK)} }} }}"
        " text { font-family: system-ui, sans-serif; } * { stroke-linejoin: round; }"
    )
    size = f'width="{math.ceil(WIDTH * 150)}" viewBox="{left:g} {top:g} {width:g} {height:g}"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'
        f" {head[1]}{size}>"
        f'<style>{rules}</style><rect width="100%" height="100%" rx="4" style="fill: var(--card)"/>'
        f"{markup[head.end() :]}\n"
    )

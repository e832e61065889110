"""A Figure as markup: inline SVG in the page's own colours and font, or, where that would be large, a PNG.

matplotlib's SVG is made for files of their own. Inside a page its ids collide with those of the next figure, and its
colours and fonts are fixed; what follows turns each into what a part of a page should have.
"""

import base64
import contextlib
import html
import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import style
from .section import WIDTH, Figure

if TYPE_CHECKING:
    import matplotlib.figure

LARGEST_SVG = 400_000  # characters; a PNG of the same figure has some 60,000
_PNG_DPI = 180
_COLOUR = re.compile("|".join(style.LIGHT.values()))
_NAME_OF = {value: name for name, value in style.LIGHT.items()}


def require_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ValueError("the report needs matplotlib, which is not there: pip install 'fullstride[report]'") from None


def draw(figure: Figure, number: int) -> str:
    """The markup. `number` is the figure's own in its page."""
    from matplotlib.figure import Figure as Canvas

    with _settings(number):
        canvas = Canvas(figsize=(WIDTH, figure.height), layout="constrained")
        figure.draw(canvas)
        markup = _svg(canvas, figure.caption, number)
        return markup if len(markup) <= LARGEST_SVG else _png(canvas, figure.caption)


def png(draw: Callable[["matplotlib.figure.Figure"], None], width: float, height: float) -> bytes:
    """A picture of its own, in inches."""
    from matplotlib.figure import Figure as Canvas

    with _settings(0):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        draw(canvas)
        return _png_bytes(canvas)


@contextlib.contextmanager
def _settings(number: int) -> Iterator[None]:
    """The reader's own matplotlibrc could ask for LaTeX; and the reader's fonts may have a sign that ours lack."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        settings: Any = {**style.rc(), "svg.hashsalt": f"figure {number}"}  # the same ids every time
        matplotlib.rcParams.update(settings)
        yield


def _svg(canvas: "matplotlib.figure.Figure", caption: str, number: int) -> str:
    stream = io.StringIO()
    canvas.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    body = re.split(r"<svg[^>]*>", text, maxsplit=1)[1]
    size = re.search(r'viewBox="([^"]*)"', text)
    assert size is not None, "matplotlib writes a viewBox"
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"\n\s*", "\n", body)
    used = set(re.findall(r"""(?:href="|url\()#([^")]+)""", body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="f{number}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r'((?:href="|url\()#)', rf"\1f{number}-", body)
    body = re.sub(r"font: (?:(\d+|bold) )?([\d.]+px)[^;\"]*", _font, body)  # before matplotlib 3.11
    body = re.sub(r" ?font-family: [^;\"]*;?", "", body)
    body = re.sub(r'(?<= style=")[^"]*', lambda m: _COLOUR.sub(lambda c: f"var(--{_NAME_OF[c[0]]})", m[0]), body)
    label = html.escape(caption)
    return f'<svg role="img" aria-label="{label}" viewBox="{size[1]}">{body}'


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match[1]}; " if match[1] else ""
    return f"{weight}font-size: {match[2]}"


def encode(pixels: NDArray[np.uint8]) -> str:
    """A small picture, (H, W, 3), as the address of an <img>."""
    from matplotlib.image import imsave

    stream = io.BytesIO()
    imsave(stream, pixels, format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _png(canvas: "matplotlib.figure.Figure", caption: str) -> str:
    data = base64.b64encode(_png_bytes(canvas)).decode()
    return f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'


def _png_bytes(canvas: "matplotlib.figure.Figure") -> bytes:
    stream = io.BytesIO()
    # Its colours are fixed, so it brings the card that they were chosen for.
    canvas.savefig(stream, format="png", dpi=_PNG_DPI, facecolor=style.LIGHT["card"])
    return stream.getvalue()

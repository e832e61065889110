"""What a report is made of: sections of text, figures and tables. Whoever makes one needs no HTML and no matplotlib."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import matplotlib.figure

WIDTH, HEIGHT = 4.9, 2.75  # inches: half of a wide screen, and all of a telephone, with text that can be read on both


@dataclass
class Figure:
    """A picture and what it shows. `caption` is also what a screen reader says."""

    caption: str
    draw: Callable[["matplotlib.figure.Figure"], None]
    """Draws on the empty figure it is given. Colours, fonts and grid are set already; see style.py for the names."""
    height: float = HEIGHT
    """Inches; the width is WIDTH."""


@dataclass
class Table:
    """Cells are text; numbers look best with the same number of decimals down a column."""

    caption: str
    columns: Sequence[str]
    """Empty for facts: each row then is a name and a value."""
    rows: Sequence[Sequence[str]]
    num_text_columns: int = 1
    """The others are numbers, and stand under each other at the right."""
    colours: Sequence[str] = ()
    """A colour's name for each row, shown as a patch before its first cell: the table is then a figure's legend."""
    keeps_lines: bool = False
    """The last column is text as somebody wrote it, with its line breaks."""
    fold: str = ""
    """The table is opened by a click on this."""


@dataclass
class Picture:
    """A small image, (H, W, 3) of uint8, shown with hard pixels; two lines under it."""

    pixels: NDArray[np.uint8]
    title: str
    note: str = ""
    is_right: bool = False
    """The title stands in the colour of what is right; else of what is wrong."""


@dataclass
class Gallery:
    """Pictures that fill the width there is."""

    caption: str
    pictures: Sequence[Picture]
    is_wide: bool = False
    """With place for sentences under each."""


@dataclass
class Recording:
    """A sound to play, the bytes of a WAV file, which become part of the page; a line over and one under it."""

    content: bytes
    title: str
    note: str = ""


@dataclass
class Section:
    """A heading and what stands under it: text (a blank line parts paragraphs), figures, tables, a gallery, sounds."""

    title: str
    text: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    gallery: Gallery | None = None
    recordings: list[Recording] = field(default_factory=list)
    recordings_caption: str = ""

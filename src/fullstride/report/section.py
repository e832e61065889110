"""What a report is made of: sections of text, figures and tables. Whoever makes one needs no HTML and no matplotlib."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import matplotlib.figure

WIDTH = 5.4  # inches: half of a wide screen, and all of a telephone, with text that can be read on both


@dataclass
class Figure:
    """A picture and what it shows. `caption` is also what a screen reader says."""

    caption: str
    draw: Callable[["matplotlib.figure.Figure"], None]
    """Draws on the empty figure it is given. Colours, fonts and grid are set already; see style.py for the names."""
    height: float = 3.0
    """Inches; the width is WIDTH."""


@dataclass
class Table:
    """Cells are text; numbers look best with the same number of decimals down a column."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    colours: Sequence[str] = ()
    """A colour's name for each row, shown as a patch before its first cell: the table is then a figure's legend."""


@dataclass
class Section:
    """A heading and what stands under it: text (a blank line parts paragraphs), figures, tables."""

    title: str
    text: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

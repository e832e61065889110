"""Colours and fonts of the report, once for the page and once for matplotlib.

A figure is drawn in the LIGHT colours. In the SVG each of them then becomes a variable of the page's style sheet, so
that the same picture is legible in a dark scheme too. The series colours have the hues of Okabe and Ito and lightnesses
of their own, so that people with any of the common colour blindnesses can tell them apart, and each has a contrast of
3:1 or more to what it lies on; tests/report/test_style.py computes both. Lines differ in stroke or marker as well.
"""

from typing import Any

LIGHT = {
    "paper": "#f6f7f9", "card": "#fefefe", "ink": "#16202c", "muted": "#55606e", "rule": "#dde2e8",
    "blue": "#0b5fae", "vermilion": "#b03c0c", "green": "#00694e", "purple": "#8a3f7c", "amber": "#b68402",
    "sky": "#3594cb", "grey": "#858c95", "strong": "#1f5f9c",
}  # fmt: skip
DARK = {
    "paper": "#11161d", "card": "#1a212b", "ink": "#e8edf3", "muted": "#a3afbd", "rule": "#323c49",
    "blue": "#4ea3f0", "vermilion": "#fb7f48", "green": "#3fcf9f", "purple": "#e08fd0", "amber": "#f6c845",
    "sky": "#a9dcfb", "grey": "#7f8b9a", "strong": "#2f78bd",
}  # fmt: skip
SERIES = ("blue", "vermilion", "green", "purple", "amber", "sky", "grey")


def rc() -> dict[str, Any]:
    """matplotlib's settings, on top of its defaults."""
    from cycler import cycler

    ink, muted, rule = LIGHT["ink"], LIGHT["muted"], LIGHT["rule"]
    return {
        "svg.fonttype": "none",  # text stays text: small, selectable, in the reader's font
        "text.parse_math": False,  # a layer may be called "a$b"
        "axes.unicode_minus": False,
        "font.size": 10.0, "axes.labelsize": 9.5, "xtick.labelsize": 9.0, "ytick.labelsize": 9.0,
        "legend.fontsize": 9.0, "axes.titlesize": 10.5,
        "text.color": ink, "axes.labelcolor": muted, "axes.titlecolor": ink, "axes.edgecolor": LIGHT["grey"],
        "xtick.color": LIGHT["grey"], "ytick.color": LIGHT["grey"],
        "xtick.labelcolor": muted, "ytick.labelcolor": muted,
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
        "axes.linewidth": 0.8, "xtick.major.width": 0.8, "ytick.major.size": 0.0, "ytick.minor.size": 0.0,
        "xtick.major.size": 3.0, "xtick.minor.size": 0.0,
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": rule, "grid.linewidth": 0.8, "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=[LIGHT[name] for name in SERIES]),
        "lines.linewidth": 1.7, "lines.markersize": 4.0, "lines.solid_capstyle": "round",
        "legend.frameon": False, "legend.handlelength": 1.6, "legend.borderaxespad": 0.2,
    }  # fmt: skip


def css_variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())

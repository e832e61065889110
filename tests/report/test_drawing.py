import warnings

import matplotlib
import numpy as np
import pytest

from fullstride.report import drawing
from fullstride.report.section import Figure

from .page_reader import Page


def lines(figure):
    figure.subplots().plot([1, 2, 3], label="a < b & c")
    figure.axes[0].legend()


def test_small_figure_is_svg_with_its_text_as_text():
    markup = drawing.draw(Figure('what "it" shows', lines), 3)
    read = Page(markup)
    assert read.all("svg")[0]["aria-label"] == 'what "it" shows'
    assert "a < b & c" in read.text
    assert "font-family" not in markup
    assert not read.all("style")  # it would be the whole page's
    assert all(name.startswith("f3-") for name in read.values("id"))


def test_dense_figure_is_a_png():
    def dense(figure):
        figure.subplots().scatter(*np.random.default_rng(0).random((2, 8000)))

    markup = drawing.draw(Figure("dense", dense), 1)
    assert markup.startswith('<img alt="dense" src="data:image/png;base64,')
    assert len(markup) < drawing.LARGEST_SVG


def test_same_figure_is_the_same_bytes():
    assert drawing.draw(Figure("x", lines), 1) == drawing.draw(Figure("x", lines), 1)


def test_settings_of_the_reader_are_neither_used_nor_changed():
    with matplotlib.rc_context({"lines.linewidth": 17.0, "text.usetex": True}):
        markup = drawing.draw(Figure("x", lines), 1)
        assert matplotlib.rcParams["lines.linewidth"] == 17.0
    assert "stroke-width: 17" not in markup


@pytest.mark.parametrize("name", ["$x_{1$", "\N{CJK UNIFIED IDEOGRAPH-6570}", "\N{GRINNING FACE}", "<b>"])
def test_any_name_can_be_drawn(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        markup = drawing.draw(Figure("x", lambda figure: figure.subplots().set_xlabel(name)), 1)
    assert name in Page(markup).text

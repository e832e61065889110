"""What the report of a CLIP shows: its figures, pictures with the captions found, and what its data took."""

import subprocess
import sys

import numpy as np
import pytest

from fullstride.report import drawing, resources
from fullstride.report.page import document, plain_header
from fullstride.report.retrieval import Example, examples, loading, quality

from .page_reader import Page
from .runs import eval_row, event_row, make_run, rows, train_row

SPACE = "\N{NO-BREAK SPACE}"
ROWS = [
    {"what": "caption of a picture, best of 100", "share": 0.7345, "chance": 0.01},
    {"what": "against a hard wrong caption", "share": 0.9, "chance": 0.5},
]


def example(caption="a red circle", found="a red circle", similarity=0.314):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    return Example(pixels, caption, found, similarity, caption == found)


def wrong():
    return example(found="a blue <b>square</b>")


def page_of(*sections):
    return Page(document("x", plain_header("x", "x", "x"), list(sections)))


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_every_figure_stands_beside_that_of_guessing():
    (table,) = quality(ROWS, make_run(rows())).tables
    assert list(table.columns) == ["", "model", "chance"]
    assert list(table.rows) == [
        ("caption of a picture, best of 100", f"73.5{SPACE}%", f"1.0{SPACE}%"),
        ("against a hard wrong caption", f"90.0{SPACE}%", f"50.0{SPACE}%"),
    ]


def test_the_temperature_is_a_curve_over_the_steps():
    run = make_run([train_row(step, temperature=0.07 - 0.001 * step) for step in (5, 10, 15)])
    (figure,) = quality(ROWS, run).figures
    assert "The temperature that the model has learnt" in figure.caption
    from matplotlib.figure import Figure

    canvas = Figure(layout="constrained")
    figure.draw(canvas)
    (ax,) = canvas.axes
    assert list(ax.lines[0].get_xdata()) == [5, 10, 15]
    assert list(ax.lines[0].get_ydata()) == pytest.approx([0.065, 0.06, 0.055])
    assert ax.get_ylim()[0] == 0
    assert "var(--blue)" in drawing.draw(figure, 1)


@pytest.mark.parametrize("found", [[], rows(), [train_row(5, temperature=None), train_row(10, temperature="x")]])
def test_a_run_that_tells_no_temperature_has_no_curve_of_it(found):
    section = quality(ROWS, make_run(found))
    assert section.figures == []
    assert len(section.tables) == 1


def test_without_rows_the_table_is_empty_and_the_page_is_whole(fast_figures):
    section = quality([], make_run())
    assert list(section.tables[0].rows) == []
    assert "Retrieval" in page_of(section).text


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_pictures_have_the_caption_that_was_found_and_wrong_ones_the_right_one_too():
    section = examples([wrong(), example()])
    first, second = section.gallery.pictures
    assert (first.title, first.note, first.is_right) == (
        "a blue <b>square</b>", "similarity 0.31; right: a red circle", False,
    )  # fmt: skip
    assert (second.title, second.note, second.is_right) == ("a red circle", "similarity 0.31", True)
    assert section.gallery.caption == "1 held-out picture with a wrong caption and 1 with the right one."


def test_pictures_are_inside_the_page_and_captions_are_escaped():
    read = page_of(examples([wrong(), example(), example()]))
    images = read.all("img")
    assert len(images) == 3
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
    assert images[0]["alt"] == "a blue <b>square</b>; similarity 0.31; right: a red circle"
    assert "a blue <b>square</b>" in read.text


def test_without_pictures_it_says_so():
    section = examples([])
    assert section.text == "There were no pictures to show."
    assert section.gallery is None
    assert page_of(section).all("img") == []


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_what_a_pair_takes_and_how_long_training_waited_are_told():
    # 2.5 s of each row are training, 0.1 s of them waiting; evaluations and checkpoints are not training.
    parts = {"data": 0.1, "forward": 0.7, "backward": 1.2, "optimizer": 0.4, "other": 0.1}
    parts |= {"evaluate": 9.0, "checkpoint": 9.0}
    run = make_run([*(train_row(step, time=parts) for step in (5, 10)), event_row(10, "end", data="2 workers")])
    (table,) = loading(run, load=0.0012, preprocess=0.00025).tables
    assert list(table.rows) == [
        ("load a pair", "1.200 ms"), ("preprocess it", "0.250 ms"),
        ("training waited for data", f"4.00{SPACE}%"), ("how it was loaded", "2 workers"),
    ]  # fmt: skip


@pytest.mark.parametrize("found", [[], [train_row(5, time=None)], [event_row(3, "end")]])
def test_of_a_run_without_times_only_what_was_measured_now_is_told(found):
    (table,) = loading(make_run(found), 0.001, 0.002).tables
    assert [name for name, _ in table.rows] == ["load a pair", "preprocess it"]


# ---- energy ----------------------------------------------------------------------------------------------------------


def measured(metric="recall_1", joules=(1800.0, 3600.0), evaluations=((5, 0.2), (10, 0.64))):
    config = {"recipe": "clip", "evaluation": {"metric": metric}}
    trained = [train_row(step, joules=value) for step, value in zip((5, 10), joules, strict=True)]
    scored = [eval_row(step, 0.5, recall_1=value) for step, value in evaluations]
    return resources.section(make_run([*trained, *scored], config=config)).text.replace(SPACE, " ")


def test_what_a_watt_hour_bought_is_said_where_energy_was_measured():
    text = measured()
    assert "Energy: 3.60 kJ, measured" in text
    assert "That is 64.0 points of recall 1 a Wh, of the best evaluation for all energy of the run." in text


def test_twice_the_energy_is_half_as_much_for_a_watt_hour():
    assert "That is 32.0 points of recall 1 a Wh" in measured(joules=(3600.0, 7200.0))


@pytest.mark.parametrize(
    "changes", [{"joules": (None, None)}, {"joules": (0.0, 0.0)}, {"metric": "loss"}, {"evaluations": ()}],
    ids=["not measured", "nothing counted", "no share", "no evaluation"],
)  # fmt: skip
def test_nothing_is_said_of_watt_hours_where_that_would_be_made_up(changes):
    text = measured(**changes)
    assert "a Wh" not in text
    assert "points" not in text


def test_import_loads_neither_torch_nor_matplotlib():
    code = "import sys, fullstride.report.retrieval; print({'torch', 'matplotlib'} & sys.modules.keys())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"

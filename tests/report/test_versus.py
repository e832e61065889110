"""Runs compared: figures of each, what their configs differ in, curves in one picture."""

import pytest
from matplotlib.figure import Figure

from fullstride.report import versus

from .page_reader import Page
from .runs import CONFIG, make_folder, rows, train_row


@pytest.fixture
def two(tmp_path):
    first = make_folder(tmp_path / "first", rows())
    second = make_folder(tmp_path / "second", rows()[:3], config=CONFIG.replace("clip: 1.0", "clip: null\nseed: 3"))
    return [first, second]


def test_fields_that_differ_are_found_and_missing_ones_are_dashes(two):
    assert versus.differences(versus.load(two)) == [("clip", ["1.0", "none"]), ("seed", ["-", "3"])]


def test_the_same_config_is_said_to_be_the_same(two):
    assert versus.as_text(versus.load([two[0], two[0]])).endswith("the configs are the same")


def test_text_has_best_and_speed_of_both(two):
    lines = [line.split("  ") for line in versus.as_text(versus.load(two)).splitlines()]
    table = {line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in lines}
    assert table["best"] == ["accuracy 97.3 %", "-"]
    assert table["speed"] == ["256 samples/s", "256 samples/s"]
    assert table["state"] == ["finished", "interrupted"]


def test_numbers_of_processes_are_compared_where_a_run_has_several(two, tmp_path):
    shared = make_folder(tmp_path / "shared", rows(), machine={"hosts": ["alpha", "beta"]})
    facts = dict(versus.facts(versus.load([two[0], shared])))
    assert facts["processes"] == ["1", "2"]
    assert "processes" not in dict(versus.facts(versus.load(two)))


def test_page_shows_curves_by_step_and_by_time(two):
    page = Page(versus.html(versus.load(two)))
    captions = [f"Figure {i + 1}. {name}" for i, name in enumerate(["Loss by step.", "Loss by time.",
                "Accuracy by step.", "Accuracy by time."])]  # fmt: skip
    assert all(caption in page.text for caption in captions)
    assert "first against second" in page.text
    assert not [value for value in page.values("src") + page.values("href") if value.startswith("http")]


def test_a_name_is_escaped(tmp_path):
    runs = [make_folder(tmp_path / name, rows()) for name in ("a<b>&", "c$d$")]
    page = Page(versus.html(versus.load(runs)))
    assert "a<b>& against c$d$" in page.text


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    (tmp_path / "x").mkdir()
    runs = [make_folder(tmp_path / "x" / "run"), make_folder(tmp_path / "run")]
    assert [entry.name for entry in versus.load(runs)] == [str(run) for run in runs]


def test_runs_without_rows_have_a_page_but_no_picture(tmp_path):
    entries = versus.load([make_folder(tmp_path / "a"), make_folder(tmp_path / "b")])
    assert "nothing to show" in Page(versus.html(entries)).text
    with pytest.raises(ValueError, match="no curves to draw yet"):
        versus.picture(entries)


def test_three_runs_are_one_picture(two, tmp_path):
    third = make_folder(tmp_path / "third", [train_row(step, loss=float("nan")) for step in (5, 10)])
    assert versus.picture(versus.load([*two, third])).startswith(b"\x89PNG")


def test_only_runs_with_a_curve_are_in_its_legend(two, tmp_path):
    """A run of another recipe has no accuracy."""
    other = make_folder(tmp_path / "other", [train_row(step) for step in (5, 10)])
    entries = versus.load([two[0], other])
    legends = {}
    for caption, draw in versus._drawings(entries):
        axes = Figure().subplots()
        draw(axes)
        legends[caption] = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legends["Loss by step."] == ["first", "other"]
    assert legends["Accuracy by step."] == ["first"]

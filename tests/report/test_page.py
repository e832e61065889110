import builtins
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from fullstride import report
from fullstride.report import classification
from fullstride.report.page import page
from fullstride.report.section import Figure, Section, Table

from .page_reader import Page
from .runs import COMPARE, MACHINE, eval_row, event_row, make_folder, make_run, rows, train_row

EVIL = "<script>alert(1)</script>\"'&</svg>$a_b$"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One full report, drawn once for all tests that only look at it."""
    folder = make_folder(tmp_path_factory.mktemp("run"), rows(), compare=COMPARE)
    labels = np.arange(40) % 10
    predictions = np.where(np.arange(40) == 7, 1, labels)
    images = np.random.default_rng(0).random((40, 28, 28))
    sections = [classification.confusion(labels, predictions), classification.mistakes(images, labels, predictions)]
    return report.write(folder, sections)


@pytest.fixture(scope="module")
def full(written):
    return Page(written.read_text())


def test_report_lies_in_the_run_folder_and_nothing_is_left_beside_it(written):
    assert written.name == "report.html"
    names = {path.name for path in written.parent.iterdir()}
    assert names == {"config.yaml", "machine.json", "metrics.jsonl", "compare.json", "report.html"}


def test_everything_a_reader_asks_for_has_its_section(full):
    links = [attributes["href"] for attributes in full.all("a") if "download" not in attributes]
    targets = full.values("id")
    assert all(link[1:] in targets for link in links)
    for name in (
        "learning", "confusion-matrix", "mistakes", "against-stock-pytorch", "speed", "time", "gradients",
        "cores-memory-and-energy", "events", "machine", "reproduce",
    ):  # fmt: skip
        assert f"#{name}" in links


def test_headline_says_what_came_out(full):
    for expected in (
        "finished, 40 of 40 steps", "97.3 %", "validation, step 40", "21.0 s", "resumed once", "3.00x",
        "2.90 to 3.10 in the rounds", "256", "500 ms a step", "80 %", "80.0 GFLOP/s", "1.20 GB", "Test CPU 9000",
        "52.0 million parameters",
    ):  # fmt: skip
        assert expected in full.text


def test_energy_that_was_not_measured_is_said_to_be_unavailable(full):
    assert "unavailable this system has no counters" in full.text
    assert "Energy is unavailable: this system has no counters." in full.text
    assert not re.search(r"\b0(\.0+)?\s*(J|kJ)\b", full.text)


def test_page_asks_nobody_for_anything(written, full):
    for attribute in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
        assert all(value.startswith(("#", "data:")) for value in full.values(attribute))
    text = written.read_text()
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert not {"script", "iframe", "object", "base"} & {tag for tag, _ in full.tags}
    policies = [meta["content"] for meta in full.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_ids_of_all_figures_together_are_unique_and_found(full):
    ids = full.values("id")
    assert len(ids) == len(set(ids))
    clips = [re.search(r"#([^)]*)", value)[1] for value in full.values("clip-path")]
    used = {value[1:] for value in full.values("xlink:href") if value.startswith("#")} | set(clips)
    assert used
    assert used <= set(ids)


def test_every_picture_has_its_caption_as_alternative_text(full):
    drawn = full.all("svg")
    assert len(drawn) == 15
    assert all(attributes["role"] == "img" for attributes in drawn)
    assert all(attributes["aria-label"] in full.text for attributes in drawn)
    assert all(attributes["alt"] for attributes in full.all("img"))


def test_headings_go_down_one_level_at_a_time(full):
    levels = [tag for tag, _ in full.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == "h1"
    assert set(levels[1:]) == {"h2"}


def test_figures_take_their_colours_from_the_page(written):
    figures = re.findall(r"<svg.*?</svg>", written.read_text(), re.DOTALL)
    assert all("var(--muted)" in figure for figure in figures)
    loose = set(re.findall(r"#[0-9a-f]{6}\b", " ".join(re.findall(r'style="([^"]*)"', " ".join(figures)))))
    assert loose <= {"#ffffff"}  # the numbers on dark cells of the confusion matrix


def test_time_by_part_is_in_the_table(full):
    assert "backward 240.00 48.0 %" in full.text
    assert "all 500.00 100.0 %" in full.text


def test_config_can_be_taken_out_again(full):
    links = [attributes["href"] for attributes in full.all("a") if attributes.get("download") == "config.yaml"]
    assert len(links) == 1
    assert "fullstride train --config config.yaml" in full.text
    assert "recipe: mlp-mnist" in full.text


def test_text_from_files_and_tasks_is_escaped():
    machine = MACHINE | {"cpu": {"model": EVIL}, "energy": f"unavailable: {EVIL}"}
    row = {"kind": "train", "attempt": 1, "step": 5, "loss": 1.0, "grad_norms": {EVIL: 1.0}}
    events = [event_row(0, "start"), event_row(5, EVIL, what=EVIL), event_row(6, "end", stopped=EVIL)]
    found = [row, eval_row(5, 0.5, **{EVIL: 1.0}), *events]
    compare = json.loads(json.dumps(COMPARE).replace("stock default", "stock <script>"))
    run = make_run(found, machine=machine, compare=compare, config_yaml=EVIL, config={"recipe": EVIL})
    own = Section(EVIL, EVIL, [Figure(EVIL, lambda figure: None)], [Table(EVIL, (EVIL,), [(EVIL,)])])
    read = Page(page(run, [own]))
    assert not read.all("script")
    assert "<script>alert(1)</script>" in read.text


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([], id="no row"),
        pytest.param([event_row(0, "start")], id="started"),
        pytest.param([train_row(5, grad_norms={"a": 0.0}, time={}, grad_norm=0.0, gflops=0.0)], id="one row of zeros"),
        pytest.param([eval_row(0, 0.1)], id="evaluated before the first step"),
        pytest.param([train_row(5, loss=float("nan")), train_row(10, loss=None, grad_norm=None)], id="not finite"),
        pytest.param([{"kind": "train", "attempt": 1, "step": 5}], id="a row with nothing in it"),
    ],
)
def test_incomplete_runs_give_a_page(found):
    read = Page(page(make_run(found, machine={})))
    assert "not finished" in read.text
    assert "Reproduce" in read.text
    assert "nan" not in read.text.lower().split()


def test_run_without_machine_and_metrics_gives_a_report(tmp_path, fast_figures):
    folder = make_folder(tmp_path, machine=None)
    (folder / "metrics.jsonl").unlink()
    assert "No step was logged yet" in Page(report.write(folder).read_text()).text


def test_broken_files_are_left_out_with_a_warning(tmp_path, fast_figures, caplog):
    folder = make_folder(tmp_path, rows(), config="recipe: [")
    (folder / "machine.json").write_text("{")
    (folder / "compare.json").write_text("[1]")
    text = Page(report.write(folder).read_text()).text
    assert "Learning" in text
    assert "Against stock PyTorch" not in text
    assert "machine.json" in caplog.text
    assert "config.yaml" in caplog.text


def test_folder_without_a_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.yaml") as error:
        report.write(tmp_path)
    assert "\n" not in str(error.value)


def test_failed_drawing_leaves_the_old_report(tmp_path):
    folder = make_folder(tmp_path)
    (folder / "report.html").write_text("old")

    def fail(figure):
        raise RuntimeError("cannot draw")

    with pytest.raises(RuntimeError, match="cannot draw"):
        report.write(folder, [Section("x", figures=[Figure("x", fail)])])
    assert (folder / "report.html").read_text() == "old"


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=re.escape("pip install 'fullstride[report]'")) as error:
        report.write(make_folder(tmp_path))
    assert "\n" not in str(error.value)


def test_import_of_the_report_loads_neither_torch_nor_matplotlib():
    code = "import sys, fullstride.report.classification; print({'torch', 'matplotlib'} & sys.modules.keys())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_sections_of_one_title_are_told_apart(fast_figures):
    read = Page(page(make_run(rows()), [Section("Same"), Section("Same"), Section("!!!")]))
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    assert "section" in ids


def test_paragraphs_are_parted_by_blank_lines(fast_figures):
    read = Page(page(make_run(rows()), [Section("Own", "first\n\nsecond\nstill second")]))
    assert "first second still second" in read.text
    assert len(read.all("p")) == len(Page(page(make_run(rows()), [Section("Own", "first")])).all("p")) + 1

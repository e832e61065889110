"""fullstride search: of a run and of an exported folder, its lines, its page, and what is refused."""

import base64
import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fullstride import cli
from fullstride.data.pictures import reading

from ..recipes.drawn import draw
from ..recipes.tiny_clip import tiny_run
from ..report.page_reader import Page
from . import commands
from .commands import one_line

TEXT = "a red circle left of a blue square"
LINE = re.compile(r" ?(-?\d\.\d{3})  (.*)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pictures")
    draw(made, 14)
    return made


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """Where a page goes that nobody gave a name."""
    monkeypatch.chdir(tmp_path)


def search(capsys, source, *words):
    """(what was printed, what was on stderr)"""
    capsys.readouterr()  # whichever test asks first for the run trains it
    assert cli.main(["search", str(source), *map(str, words)]) == 0
    return capsys.readouterr()


def refused(capsys, *words):
    capsys.readouterr()
    code: object
    try:
        code = cli.main(["search", *map(str, words)])
    except SystemExit as ended:  # of the parser
        code = ended.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return one_line(err)


def lines_of(out):
    """[(similarity, path)], and what else was printed."""
    found = [(line, LINE.fullmatch(line)) for line in out.splitlines()]
    return [(float(match[1]), match[2]) for _, match in found if match], [line for line, match in found if not match]


def pictures_of(page):
    """As the browser gets them."""
    from PIL import Image

    for source in Page(page).values("src"):
        kind, _, content = source.partition(",")
        assert kind == "data:image/png;base64"
        yield np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))


def test_the_best_twelve_are_lines_and_a_page(folder, tmp_path, capsys):
    out, err = search(capsys, tiny_run(), TEXT, "--folder", folder)
    found, rest = lines_of(out)
    assert len(found) == 12
    assert [value for value, _ in found] == sorted((value for value, _ in found), reverse=True)
    assert {path for _, path in found} < {str(path) for path in folder.iterdir()}
    assert rest == ["page: search.html"]
    assert err == ""
    assert (tmp_path / "search.html").is_file()


def test_an_exported_folder_finds_what_its_run_finds(folder, tmp_path, capsys):
    assert cli.main(["export", str(tiny_run()), "--to", str(tmp_path / "clip")]) == 0
    words = [TEXT, "--folder", folder, "--no-page", "--top", 14]
    of_run, of_export = (search(capsys, source, *words).out for source in (tiny_run(), tmp_path / "clip"))
    assert of_run == of_export
    assert len(lines_of(of_run)[0]) == 14


def test_json_has_paths_and_similarities(folder, tmp_path, capsys):
    words = [TEXT, "--folder", folder, "--no-page", "--top", "3"]
    found = json.loads(search(capsys, tiny_run(), *words, "--json").out)
    shown, _ = lines_of(search(capsys, tiny_run(), *words).out)
    assert [(round(one["similarity"], 3), one["path"]) for one in found] == [(pytest.approx(a), b) for a, b in shown]
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_a_run_find_other_things(folder, capsys):
    words = [TEXT, "--folder", folder, "--no-page", "--checkpoint"]
    second, fourth, last = (search(capsys, tiny_run(), *words, which).out for which in ("2", "4", "last"))
    assert second != fourth == last


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_the_pictures_inside_best_first(folder, tmp_path, capsys):
    out, _ = search(capsys, tiny_run(), TEXT, "--folder", folder, "--top", "5", "--to", tmp_path / "found.html")
    found, rest = lines_of(out)
    assert rest == [f"page: {tmp_path / 'found.html'}"]
    page = (tmp_path / "found.html").read_text()
    expected = [reading.decode(Path(path).read_bytes(), 320) for _, path in found]
    assert all(np.array_equal(a, b) for a, b in zip(pictures_of(page), expected, strict=True))
    places = [Page(page).text.index(f"{os.path.basename(path)} similarity {value:.3f}") for value, path in found]
    assert places == sorted(places)
    assert TEXT in Page(page).text
    assert "The best 5 of 14 pictures" in Page(page).text


def test_the_page_escapes_what_was_looked_for(folder, tmp_path, capsys):
    text = '<script>alert("a")</script> & <img src="http://example.org/x.png">'
    search(capsys, tiny_run(), text, "--folder", folder, "--to", tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text()
    assert text in Page(page).text
    assert "<script>" not in page
    assert not Page(page).all("script")


def test_the_page_asks_no_other_address(folder, tmp_path, capsys):
    search(capsys, tiny_run(), "a red circle", "--folder", folder, "--to", tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text()
    assert not re.search(r"(?i)https?:|//[a-z]|@import|url\(", re.sub(r"data:image/png;base64,[^\"]*", "", page))
    read = Page(page)
    assert all(value.startswith(("#", "data:")) for value in read.values("href") + read.values("src"))
    assert not read.all("script") + read.all("iframe")
    (policy,) = [meta["content"] for meta in read.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")


def test_a_page_of_ours_is_replaced(folder, tmp_path, capsys):
    for text in ("a red circle", "two blue rings"):
        search(capsys, tiny_run(), text, "--folder", folder)
    text = Page((tmp_path / "search.html").read_text()).text
    assert "two blue rings" in text
    assert "a red circle" not in text


def test_names_that_are_no_text_are_shown_all_the_same(tmp_path, capsys):
    draw(tmp_path / "set", 2)
    os.rename(tmp_path / "set" / "scene-01.png", os.fsencode(tmp_path / "set") + b"/caf\xe9 <b>.png")
    out, _ = search(capsys, tiny_run(), TEXT, "--folder", tmp_path / "set")
    assert str(tmp_path / "set" / "caf\\udce9 <b>.png") in out
    assert "caf\\udce9 <b>.png" in Page((tmp_path / "search.html").read_text()).text


# ---- what cannot be --------------------------------------------------------------------------------------------------


def test_pictures_that_cannot_be_read_are_named_and_counted(tmp_path, capsys):
    good = draw(tmp_path / "set", 3)
    for i in range(8):
        (tmp_path / "set" / f"broken-{i}.png").write_bytes(good[0].read_bytes()[: 60 + i])
    out, err = search(capsys, tiny_run(), TEXT, "--folder", tmp_path / "set")
    assert {path for _, path in lines_of(out)[0]} == set(map(str, good))
    *named, others = err.splitlines()
    assert [line.split(": ")[1] for line in named] == [
        f"skipped {tmp_path / 'set' / f'broken-{i}.png'}" for i in range(5)
    ]  # fmt: skip
    assert others == "fullstride: skipped 3 others"
    assert "of 3 pictures" in Page((tmp_path / "search.html").read_text()).text


def test_an_exported_folder_has_no_checkpoints_to_choose_from(folder, tmp_path, capsys):
    assert cli.main(["export", str(tiny_run()), "--to", str(tmp_path / "clip")]) == 0
    line = refused(capsys, tmp_path / "clip", TEXT, "--folder", folder, "--checkpoint", "last")
    assert "--checkpoint: expected a run, got" in line


def test_a_run_of_another_recipe_is_one_line(folder, tmp_path, capsys):
    assert commands.train(tmp_path / "run") == 0
    line = refused(capsys, tmp_path / "run", TEXT, "--folder", folder)
    assert line.endswith("run is a run of recipe mlp, which knows no pictures: give a clip's")


def test_without_matplotlib_there_are_lines_and_no_page(folder, capsys, monkeypatch):
    tiny_run()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refused(capsys, tiny_run(), TEXT, "--folder", folder)
    assert line.endswith("the page needs matplotlib: pip install 'fullstride[report]', or leave it by --no-page")
    assert len(lines_of(search(capsys, tiny_run(), TEXT, "--folder", folder, "--no-page").out)[0]) == 12


def test_another_file_at_the_place_of_the_page_is_kept(folder, tmp_path, capsys):
    (tmp_path / "search.html").write_text("<p>mine</p>")
    line = refused(capsys, tiny_run(), TEXT, "--folder", folder)
    assert line.endswith("search.html is there already, and no page of Fullstride: give another name by --to")
    assert (tmp_path / "search.html").read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["RUN", "", "--folder", "SET"], "expected words to look for, got an empty text"),
        (["RUN", " \n", "--folder", "SET"], "expected words to look for, got an empty text"),
        (["RUN", TEXT], "the following arguments are required: --folder"),
        (["RUN", TEXT, "--folder", "none"], "--folder: expected a folder of pictures, got none, which is none"),
        (["RUN", TEXT, "--folder", "SET/scene-00.png"], "scene-00.png, which is none"),
        (["RUN", TEXT, "--folder", "EMPTY"], "empty: expected pictures (.jpg, "),
        (["nowhere", TEXT, "--folder", "SET"], "nowhere: expected the folder of a run of recipe clip, or of a CLIP"),
        (["RUN", TEXT, "--folder", "SET", "--top", "0"], "--top: expected"),
        (["RUN", TEXT, "--folder", "SET", "--to", "page.txt"], "--to: expected a name that ends with .html, got page"),
        (["RUN", TEXT, "--folder", "SET", "--to", "none/page.html"], "there is no folder none"),
        (["RUN", TEXT, "--folder", "SET", "--checkpoint", "9"], "has no checkpoint of step 9 that is whole"),
        (["RUN", TEXT, "--folder", "SET", "--checkpoint", "x"], "--checkpoint: expected best, last or"),
    ],
)
def test_bad_input_is_one_line(folder, tmp_path, capsys, words, line):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").touch()
    known = {"RUN": str(tiny_run()), "SET": str(folder), "EMPTY": str(tmp_path / "empty")}
    known["SET/scene-00.png"] = str(folder / "scene-00.png")
    assert line in refused(capsys, *(known.get(word, word) for word in words))
    assert not (tmp_path / "search.html").exists()

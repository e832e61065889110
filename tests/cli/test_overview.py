"""fullstride runs."""

import json
import os
import subprocess
import sys

import pytest

from fullstride import cli

from ..report.runs import make_folder, rows
from .commands import one_line


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with runs/a and runs/b."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in "ab":
        make_folder(tmp_path / "runs" / name, rows())
    return tmp_path


def test_table_is_of_the_folder_runs(home, capsys):
    assert cli.main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "recipe", "state", "steps", "best", "speed", "time", "age"]
    assert [line.split()[0] for line in lines[1:]] == ["runs/a", "runs/b"]


def test_table_does_not_load_torch(home):
    code = "import sys; from fullstride import cli; cli.main(['runs']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=home, stdout=subprocess.DEVNULL)


def test_broken_folders_say_so_once(home, capsys):
    make_folder(home / "runs" / "c", rows(), config="steps: [")
    assert cli.main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("runs/c") == 1


def test_json_is_the_table(home, capsys):
    assert cli.main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["folder"] for run in found["runs"]] == ["runs/a", "runs/b"]


def test_two_runs_are_compared_by_their_names(home, capsys):
    assert cli.main(["runs", "a", "runs/b"]) == 0
    assert capsys.readouterr().out.endswith("the configs are the same\n\ncurves: a-against-b.html\n")
    assert cli.main(["runs", "a", "b"]) == 0  # a page of ours is replaced


def test_picture_alone_and_json(home, capsys):
    assert cli.main(["runs", "a", "b", "--to", "x.png", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []
    assert sorted(os.listdir(home)) == ["runs", "x.png"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "there is no folder nowhere: expected a folder with runs, or a run"),
        (["mine.html"], "mine.html is a file: expected a folder with runs"),
        (["empty"], "no run in empty: expected folders that `fullstride train` made"),
        (["a", "nowhere"], "there is no run folder nowhere"),
        (["a", "empty"], "empty is not a run folder, it has no config.yaml"),
        (["a", "b", "--to", "x.pdf"], "--to: expected a name that ends with .html or .png, got x.pdf"),
        (["a", "b", "--to", "none/x.html"], "cannot write none/x.html: there is no folder none"),
        (["a", "b", "--to", "mine.html"], "mine.html is there already, and no page of Fullstride"),
        (["a", "b", "--to", "dir.html"], "cannot write dir.html: it is not a regular file"),
    ],
)
def test_bad_input_is_one_line(home, capsys, words, line):
    (home / "mine.html").write_text("<html>")
    for name in ("empty", "dir.html"):
        (home / name).mkdir()
    assert cli.main(["runs", *words]) == 2
    assert line in one_line(capsys.readouterr().err)


def test_a_target_without_a_comparison_is_one_line(home, capsys):
    with pytest.raises(SystemExit):
        cli.main(["runs", "--to", "x.html"])
    assert "--to is for comparing: expected two runs or more" in one_line(capsys.readouterr().err)

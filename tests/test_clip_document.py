"""The commands of docs/clip.md do what is said there, with a model of a few weights and runs of two steps.

`data emoji`, which needs the network, is only parsed here; the emoji are drawn.
"""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from fullstride import cli
from fullstride.data import sources

from .recipes.drawn import draw, draw_pairs, emoji
from .recipes.tiny_clip import MODEL, tiny_run

DOCUMENT = (Path(__file__).parents[1] / "docs" / "clip.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", DOCUMENT, re.M | re.S)
COMMANDS = [line.partition("  #")[0].strip().removesuffix(" #") for block in BLOCKS for line in block.splitlines()]
PYTHON = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.M | re.S)
RUN = re.compile(r"runs/clip-small-\.\.\.")
SMALL = [
    *(word for name, value in MODEL.items() for word in (f"--model.{name.replace('_', '-')}", str(value))),
    "--data.workers", "0", "--data.tokenizer", "characters", "--threads", "1", "--precision", "fp32",
    "--schedule.warmup", "0", "--evaluation.batch", "5", "--steps", "2", "--run", "new", "--quiet", "--no-report",
]  # fmt: skip


def of(kind):
    return [line for line in COMMANDS if line.startswith(f"fullstride {kind} ")]


def words_of(line):
    words = shlex.split(RUN.sub("run", line).partition(" # ")[0])[1:]
    return words


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the commands run: beside a run, an exported model, pictures, and pictures with captions."""
    pytest.importorskip("PIL")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))
    shutil.copytree(tiny_run(), "run")
    assert cli.main(["export", "run", "--to", "clip"]) == 0
    draw(tmp_path / "pictures", 12)
    draw_pairs(tmp_path / "my_pictures", 12)
    emoji(tmp_path / "data" / "emoji")
    return tmp_path


def test_every_line_of_a_block_is_a_command_that_is_tested():
    tested = [line for kind in ("data", "train", "search", "export", "evaluate", "report") for line in of(kind)]
    assert sorted(tested) == sorted(COMMANDS)


@pytest.mark.parametrize("line", of("data"))
def test_data_is_fetched_by_names_that_there_are(line):
    assert words_of(line)[1] in sources.NAMES


@pytest.mark.parametrize("line", of("train"))
def test_recipes_train(line, folder):
    words = words_of(line)
    small = list(SMALL)
    if "--init" in words:
        for name in ("--data.tokenizer", *(word for word in SMALL if word.startswith("--model."))):
            place = small.index(name)
            del small[place : place + 2]
    if "--data.num-train" not in words:
        small += ["--data.num-train", "24", "--data.num-valid", "10"]
    if "--micro-batch" in words:
        words[words.index("--micro-batch") + 1] = "24"
    else:
        small += ["--micro-batch", "6"]
    assert cli.main([*words, *small]) == 0
    assert (folder / "new" / "checkpoints").is_dir()


@pytest.mark.parametrize("line", of("search"))
def test_pictures_are_found(line, folder, capsys):
    assert cli.main(words_of(line)) == 0
    assert "pictures/" in capsys.readouterr().out
    assert any(folder.glob("*.html")) == ("--no-page" not in line)


@pytest.mark.parametrize("line", [*of("evaluate"), *of("report"), *of("export")])
def test_runs_are_evaluated_shown_and_exported(line, folder):
    pytest.importorskip("matplotlib")
    shutil.rmtree("clip")
    assert cli.main(words_of(line)) == 0


def test_transformers_reads_the_folder(folder):
    pytest.importorskip("transformers")
    (code,) = PYTHON
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["vectors"].shape == (2, MODEL["space"])


def test_every_link_leads_somewhere():
    root = Path(__file__).parents[1] / "docs"
    for target in re.findall(r"\]\(([^)#]+)", DOCUMENT):
        assert (root / target).is_file(), target

"""The commands of docs/fastspeech2.md do what is said there, on a corpus of a few sentences and a run of two steps.

`data speech` is only parsed here: tests/data/speech makes corpora. Every other command runs.
"""

import argparse
import io
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullstride import cli
from fullstride.cli import speech_corpus as command
from fullstride.sound import wav

from .recipes.speech_corpus import MODEL, tiny_corpus, tiny_run

DOCUMENT = (Path(__file__).parents[1] / "docs" / "fastspeech2.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", DOCUMENT, re.M | re.S)
COMMANDS = [line.partition("  #")[0].strip() for block in BLOCKS for line in block.splitlines()]
RUN = re.compile(r"runs/fastspeech2-(quick-)?\.\.\.")
SMALL = [
    *(word for name, value in MODEL.items() for word in (f"--model.{name.replace('_', '-')}", str(value))),
    "--data.workers", "0", "--micro-batch", "4", "--accumulate", "1", "--threads", "1", "--precision", "fp32",
    "--schedule.warmup", "0", "--listening.sentences", "0", "--listening.iterations", "2", "--run", "new", "--quiet",
    "--no-report",
]  # fmt: skip


def of(kind: str) -> list[str]:
    return [line for line in COMMANDS if line.startswith(f"fullstride {kind} ")]


def words_of(line: str) -> tuple[list[str], str | None]:
    """As the shell would give them, and the file that would be standard input."""
    words = shlex.split(RUN.sub("run", line))[1:]
    return (words[:-2], words[-1]) if "<" in words else (words, None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the commands run: beside a run, a voice and a story."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run(2), "run")
    assert cli.main(["export", "run", "--to", "voice"]) == 0
    Path("story.txt").write_text("The king went home.\nWe like tea.\n")
    return tmp_path


def test_every_line_of_a_block_is_a_command_that_is_tested():
    tested = [line for kind in ("data", "train", "speak", "export", "evaluate", "report") for line in of(kind)]
    assert sorted(tested) == sorted(COMMANDS)


@pytest.mark.parametrize("line", of("data"))
def test_corpora_are_made_by_options_that_there_are(line, monkeypatch):
    seen = []

    def run(options: argparse.Namespace) -> int:
        seen.append(options.name)
        return 0

    monkeypatch.setattr(command, "run", run)
    assert cli.main(words_of(line)[0]) == 0
    assert seen == ["speech"]


@pytest.mark.parametrize("line", of("train"))
def test_recipes_train(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [str(tiny_corpus()) if word.startswith("corpora/") else word for word in words_of(line)[0]]
    if "--data.path" not in words:
        words += ["--data.path", str(tiny_corpus())]
    assert cli.main([*words, *SMALL, *length_of(words[1])]) == 0
    assert (tmp_path / "new" / "front_end.json").is_file()


def length_of(recipe: str) -> list[str]:
    return ["--steps", "1"] if recipe.endswith("quick") else ["--epochs", "1"]


@pytest.mark.parametrize("line", of("speak"))
def test_speech_is_written(line, folder, monkeypatch):
    words, given = words_of(line)
    if given:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(given).read_bytes())))
    words = ["en-gb" if word == "rms" else word for word in words]
    assert cli.main([*words, "--iterations", "2"]) == 0
    out = Path(words[words.index("--out") + 1])
    files = [out] if out.suffix else sorted(out.iterdir())
    assert len(files) == (1 if out.suffix else 2)
    assert all(len(wav.read(path).samples) > 0 for path in files)
    if "--mels" in words:
        assert np.load("mels/001.npy").shape[0] == 80


@pytest.mark.parametrize("line", [*of("export"), *of("evaluate"), *of("report")])
def test_runs_are_exported_and_looked_at(line, folder):
    shutil.rmtree("voice")
    words = words_of(line)[0]
    assert cli.main(words) == 0
    if "--to" in words:
        assert Path(words[words.index("--to") + 1]).exists()


def test_the_exported_folder_needs_nothing_of_fullstride(folder, monkeypatch):
    [code] = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.M | re.S)
    assert "fullstride" not in code
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/fastspeech2.md", "exec"), names)
    assert names["mel"].shape[::2] == (1, 80)
    assert Path(sys.modules["model"].__file__ or "").parent == folder / "voice"
    monkeypatch.delitem(sys.modules, "model")

"""fullstride data, and training on what is put into a folder by hand."""

import gzip

import numpy as np
import pytest

from fullstride import cli
from fullstride.data import idx, sources
from fullstride.recipes import config_files
from fullstride.run_folder import metrics
from fullstride.sound import wav

from ..data.speech import folders
from .commands import one_line, train


def letters(folder, packed):
    """A set of 26 letters as EMNIST packs them, 12 x 12 pixels: the brightness tells which."""
    folder.mkdir()
    for part, times in (("train", 4), ("test", 2)):
        labels = np.tile(np.arange(1, 27, dtype=np.uint8), times)
        images = np.broadcast_to((labels * 9)[:, None, None], (len(labels), 12, 12)).copy()
        for name, records in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content, end = idx.encode(records), ".gz" if packed else ""
            (folder / f"emnist-letters-{name}{end}").write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.mark.parametrize("packed", [True, False], ids=["gzipped", "plain"])
def test_a_folder_of_another_set_is_trained_on_as_it_is(tmp_path, packed):
    folder = letters(tmp_path / "letters", packed)
    assert train(tmp_path / "run", "--data.name", "mnist", "--data.path", str(folder)) == 0
    assert [row["step"] for row in metrics.read(tmp_path / "run") if row["kind"] == "eval"] == [2, 4]
    task = config_files.read(tmp_path / "run" / "config.yaml").task()
    assert (task.num_train, task.num_valid) == (104, 52)
    assert task.stock().arguments["widths"] == [144, 8, 26]


def test_a_folder_without_a_set_is_one_line(tmp_path, capsys):
    assert train(tmp_path / "run", "--data.name", "mnist", "--data.path", str(tmp_path / "empty")) == 2
    assert f"no MNIST in {tmp_path / 'empty'}" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_a_folder_whose_files_do_not_fit_is_one_line(tmp_path, capsys):
    folder = letters(tmp_path / "letters", packed=False)
    idx.write(folder / "emnist-letters-train-labels-idx1-ubyte", np.ones(3, np.uint8))
    assert train(tmp_path / "run", "--data.name", "mnist", "--data.path", str(folder)) == 2
    assert "has 104 images and" in one_line(capsys.readouterr().err)


def test_without_a_name_all_are_listed(capsys):
    assert cli.main(["data"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*sources.NAMES, "speech"]


def test_what_no_package_has_is_answered_with_the_way_to_get_it(tmp_path, capsys):
    assert cli.main(["data", "cifar100", "--path", str(tmp_path)]) == 2
    line = one_line(capsys.readouterr().err)
    assert "cifar-100-binary.tar.gz" in line
    assert f"tar -xzf cifar-100-binary.tar.gz -C {tmp_path}" in line


def test_a_part_of_a_set_comes_with_the_way_to_all_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sources.mnist_source, "FILES", {})  # there is nothing to be fetched
    assert cli.main(["data", "mnist", "--path", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"`fullstride data mnist --path {tmp_path} --full`" in out
    assert "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz" in out


def test_speech_is_made_and_told_of(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("The cat sat on the mat all day. The dog ran to the door at noon.\n")
    words = ["data", "speech", "--engine", "espeak", "--voice", "en-gb", "--hours", "1", "--processes", "1"]
    assert cli.main([*words, "--text", str(tmp_path / "mine.txt"), "--path", str(tmp_path / "corpus")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"speech: 0.00 hours, 2 sentences by en-gb to train on, 50 held out, in {tmp_path / 'corpus'}"
    )
    assert lines[1:] == ["that is all there is: 0.00 of 1 hours"]


def test_recordings_are_told_of_with_what_was_done_to_them_and_skipped(tmp_path, capsys):
    sounds = folders.spoken()
    folder = folders.write(tmp_path / "recordings", sounds)
    for name, sound in sounds.items():
        wav.write(folder / "wavs" / f"{name}.wav", wav.resample(sound.samples, sound.rate, 16000), 16000)
    with open(folder / "metadata.csv", "a") as table:
        table.write("five|\n")
    out = tmp_path / "corpus"
    assert cli.main(["data", "speech", "--recordings", str(folder), "--path", str(out), "--processes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("speech: 0.00 hours, ")
    assert lines[1:] == [
        "recordings resampled from 16,000 Hz: 4",
        "skipped 1:",
        f"  {folder / 'metadata.csv'}: line 5: expected what five says, got no text",
    ]


def test_help_names_the_options_of_speech(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["data", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(option in out for option in ("--hours", "--voice", "--recordings", "--bad", "--longest", "--processes"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["speech", "--voice", "nobody", "--engine", "espeak"], "--voice: expected one of en-us, en-gb, which"),
        (["speech", "--recordings", "x", "--voice", "slt"], "--voice is of a synthesised corpus"),
        (["speech", "--recordings", "nowhere"], "nowhere: expected metadata.csv"),
        (["speech", "--text", "nowhere.txt"], "nowhere.txt"),
        (["speech", "--full"], "--full: expected with `fullstride data mnist` alone"),
        (["mnist", "--hours", "2"], "--hours: expected with `fullstride data speech` alone, got mnist"),
        (["--seed", "2"], "--seed: expected with `fullstride data speech` alone, got no name"),
    ],
)
def test_options_that_do_not_fit_are_one_line(tmp_path, capsys, words, line):
    assert cli.main(["data", *words, "--path", str(tmp_path / "corpus")]) == 2
    assert line in one_line(capsys.readouterr().err)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--hours", "0"], "expected a number above 0"),
        (["--hours", "nan"], "expected a number above 0"),
        (["--seed", "-1"], "seed"),
        (["--bad", "maybe"], "expected one of skip, refuse, got 'maybe'"),
        (["--engine", "festival"], "expected one of flite, espeak, got 'festival'"),
        (["--processes", "0"], "--processes"),
    ],
)
def test_values_that_cannot_be_are_one_line(capsys, words, line):
    with pytest.raises(SystemExit) as ended:
        cli.main(["data", "speech", *words])
    assert ended.value.code == 2
    assert line in one_line(capsys.readouterr().err)

"""fullstride data, and training on what is put into a folder by hand."""

import gzip

import numpy as np
import pytest

from fullstride import cli
from fullstride.data import idx, sources
from fullstride.recipes import config_files
from fullstride.run_folder import metrics

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
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(sources.NAMES)


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

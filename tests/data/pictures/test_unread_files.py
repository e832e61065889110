"""What cannot be read in a folder is counted, and the rest of it is used."""

import builtins
import io
import os

import pytest

from fullstride.data.pictures import listing
from fullstride.data.pictures.found import UNREAD, Skipped

from .making import encoded, picture, tar

PNG = encoded(picture())


@pytest.fixture
def folder(tmp_path):
    """A pair."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "a.txt").write_text("a cat")
    return tmp_path


def lines(folder):
    skipped = Skipped()
    (pair,) = listing.find(folder, skipped)
    assert (pair.name, pair.captions) == ("a.png", ("a cat",))
    return skipped.lines()


@pytest.mark.parametrize("target", ["gone", "../gone", "LINK"])
@pytest.mark.parametrize("name", ["b.png", "b.txt", "b.csv", "b.tsv", "b.jsonl", "b.tar"])
def test_a_link_to_nothing_is_counted(folder, name, target):
    other = {"b.png": "b.txt", "b.txt": "b.png"}.get(name)
    if other:
        (folder / other).write_bytes(PNG)
    os.symlink(name if target == "LINK" else target, folder / name)
    assert lines(folder) == [f"skipped 1, {UNREAD}: {name}: is a link to what is not there"]


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "b.csv")
    assert lines(folder) == [f"skipped 1, {UNREAD}: b.csv: is no file"]


@pytest.mark.parametrize("name", ["b.txt", "b.csv", "b.jsonl"])
def test_a_file_that_may_not_be_read_is_counted(folder, name, monkeypatch):
    (folder / name).write_text("x")
    if name == "b.txt":
        (folder / "b.png").write_bytes(PNG)
    opened = builtins.open

    def denies(path, *arguments, **options):  # root may read whatever chmod says
        if os.path.basename(str(path)) == name:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", denies)
    assert lines(folder) == [f"skipped 1, {UNREAD}: {name}: Permission denied"]


def test_a_single_table_that_may_not_be_read_is_an_error_that_says_so(folder, monkeypatch):
    (folder / "b.jsonl").write_text("x")

    def denies(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(builtins, "open", denies)
    with pytest.raises(ValueError, match=f"found no pair; skipped 1, {UNREAD}: b.jsonl: Permission denied"):
        listing.find(folder / "b.jsonl", Skipped())


def test_a_folder_that_is_a_link_is_counted(folder):
    (folder / "in").mkdir()
    os.symlink("..", folder / "in" / "circle")
    os.symlink("in", folder / ".hidden")
    assert lines(folder) == ["skipped 1, folder is a link; give what it leads to: in/circle"]


def test_a_folder_that_may_not_be_read_is_counted(folder, monkeypatch):
    (folder / "in").mkdir()
    listed = os.scandir

    def denies(path):
        if os.path.basename(path) == "in":
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", denies)
    assert lines(folder) == ["skipped 1, folder cannot be read: in: Permission denied"]


def test_a_link_to_a_tar_file_in_the_folder_is_followed(tmp_path):
    (tmp_path / "x.bin").write_bytes(tar([("a.png", PNG), ("a.txt", b"a cat")]))
    os.symlink("x.bin", tmp_path / "x.tar")
    skipped = Skipped()
    assert [pair.name for pair in listing.find(tmp_path, skipped)] == ["x.tar/a"]
    assert len(skipped) == 0

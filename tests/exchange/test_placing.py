import os

import pytest

from fullstride.exchange import placing


def put(tmp_path, names, replace=False):
    """New files, to be named together."""
    with placing.aside(tmp_path / names[0]) as folder:
        for name in names:
            (folder / f"{name}.new").write_text(f"new {name}")
        placing.place({folder / f"{name}.new": tmp_path / name for name in names}, replace)


def put_folder(tmp_path, name):
    with placing.aside(tmp_path / name) as folder:
        (folder / "new").mkdir()
        (folder / "new" / "file").write_text("new")
        placing.place({folder / "new": tmp_path / name}, replace=True)


def interrupted(tmp_path):
    with placing.aside(tmp_path / "a") as folder:
        (folder / "x").write_text("half of it")
        raise KeyboardInterrupt


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def failing(monkeypatch, at):
    """The renaming of that number fails."""
    whole, count = os.replace, iter(range(10))

    def replace(source, target):
        if next(count) == at:
            raise OSError(5, "Input/output error")
        whole(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_files_get_their_names_together(tmp_path):
    put(tmp_path, ["a", "b"])
    assert tree(tmp_path) == {"a": "new a", "b": "new b"}
    assert len(list(tmp_path.iterdir())) == 2


def test_if_the_second_cannot_have_its_name_the_first_is_gone_again(tmp_path):
    (tmp_path / "b").write_text("old")
    with pytest.raises(ValueError, match="b is there already"):
        put(tmp_path, ["a", "b"])
    assert tree(tmp_path) == {"b": "old"}


@pytest.mark.parametrize("at", [0, 1])
def test_if_one_cannot_be_replaced_both_are_as_they_were(at, tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old a")
    (tmp_path / "b").write_text("old b")
    failing(monkeypatch, at)
    with pytest.raises(OSError, match=r"cannot write .*a: Input/output error"):
        put(tmp_path, ["a", "b"], replace=True)
    assert tree(tmp_path) == {"a": "old a", "b": "old b"}


def test_a_folder_that_cannot_be_replaced_is_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("old")
    failing(monkeypatch, 0)
    with pytest.raises(OSError, match="Input/output error"):
        put_folder(tmp_path, "a")
    assert tree(tmp_path) == {"a/file": "old"}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_system_without_links_will_do(tmp_path, monkeypatch):
    def no_links(*_, **__):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    put(tmp_path, ["a"])
    put(tmp_path, ["a"], replace=True)
    assert tree(tmp_path) == {"a": "new a"}


def test_an_interruption_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path)
    assert not list(tmp_path.iterdir())

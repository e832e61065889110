import json
import os

import pytest

from fullstride.data.pictures import listing
from fullstride.data.pictures.found import Skipped

from .making import encoded, picture

PNG = encoded(picture())


def find(path):
    skipped = Skipped()
    return {pair.name: pair for pair in listing.find(path, skipped)}, skipped.counts


def put(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(PNG)


@pytest.mark.parametrize("table", ["captions.csv", "metadata.csv", "mine.csv"])
@pytest.mark.parametrize("header", ["file,caption", "Text,file_name", "image,title", "filename,text", "caption,path"])
def test_tables_of_any_name_with_any_known_header_are_read(tmp_path, table, header):
    put(tmp_path, "a.png", "b.png")
    is_first = header.split(",")[0].lower() in ("file", "image", "filename")
    rows = [("a.png", "a cat"), ("b.png", '"a dog, barking"')]
    lines = [",".join(row if is_first else row[::-1]) for row in rows]
    (tmp_path / table).write_text("\n".join([header, *lines]))
    found, counts = find(tmp_path)
    assert {name: pair.captions for name, pair in found.items()} == {
        "a.png": ("a cat",),
        "b.png": ("a dog, barking",),
    }
    assert counts == {}
    assert found["a.png"].place.read() == PNG


@pytest.mark.parametrize("line", ["a.png,a cat", "a.png|a cat", "a.png\ta cat", "a cat;a.png"])
def test_two_columns_need_no_header(tmp_path, line):
    put(tmp_path, "a.png")
    (tmp_path / "captions.csv").write_text(line + "\n")
    assert find(tmp_path)[0]["a.png"].captions == ("a cat",)


def test_commas_of_a_last_column_need_no_quotes(tmp_path):
    put(tmp_path, "a.png")
    (tmp_path / "captions.csv").write_text("file,caption\na.png,a cat, a dog\n")
    assert find(tmp_path)[0]["a.png"].captions == ("a cat, a dog",)


def test_several_rows_of_a_picture_are_its_captions(tmp_path):
    put(tmp_path, "a.png")
    (tmp_path / "captions.csv").write_text("file,caption\na.png,first\na.png,  second\n./a.png,first\n")
    found, counts = find(tmp_path)
    assert found["a.png"].captions == ("first", "second")
    assert counts == {"line of a table said again": 1}


def test_lines_of_json_may_have_a_list_of_captions(tmp_path):
    put(tmp_path, "in/a.png", "b.png")
    lines = [{"file_name": "in/a.png", "text": ["one", "two"]}, {"image": "b.png", "caption": "three", "label": 7}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found, _ = find(tmp_path / "x.jsonl")
    assert found["in/a.png"].captions == ("one", "two")
    assert found["b.png"].label == "7"


def test_texts_beside_pictures_are_captions_in_all_folders(tmp_path):
    put(tmp_path, "a.JPG", "deep/er/b.webp")
    (tmp_path / "a.txt").write_text("a cat\non a mat\n")
    (tmp_path / "deep/er/b.txt").write_text("\ufeffa dog")
    found, counts = find(tmp_path)
    assert {name: pair.captions for name, pair in found.items()} == {
        "a.JPG": ("a cat on a mat",),
        "deep/er/b.webp": ("a dog",),
    }
    assert counts == {}


def test_all_that_is_wrong_is_counted_and_the_rest_is_used(tmp_path):
    put(tmp_path, "a.png", "b.png", "c.png", "d.png", "lonely.png")
    (tmp_path.parent / "outside.png").write_bytes(PNG)
    (tmp_path / "captions.csv").write_bytes(
        b"file,caption,split\n"
        b"a.png,good,\n"
        b"b.png,caf\xe9,\n"  # Latin-1
        b"c.png, ,\n"
        b"missing.png,nobody,\n"
        b"../outside.png,out,\n"
        b"d.png,fine,sometimes\n"
        b",nothing,\n"
        b"a.png\n"
    )
    found, counts = find(tmp_path)
    assert list(found) == ["a.png"]
    assert counts == {
        "caption is not UTF-8": 1, "empty caption": 1, "caption without a picture": 1, "picture without a caption": 1,
        "split is none of train, valid, val, validation, test, dev": 1, "line of a table cannot be read": 2,
        "table names a picture outside the folder; give the folder above both instead": 1,
    }  # fmt: skip


def test_lines_of_json_that_are_wrong_are_named_with_their_numbers(tmp_path):
    put(tmp_path, "a.png")
    lines = [
        b'{"file": "a.png", "caption": "x"}', b"{", b"[1]", b'{"file": "a.png", "caption": 5}', b'{"caption": "y"}',
        b'{"file": "a.png", "caption": "\xff"}', b'{"file": "a.png", "text": "\\ud800"}',
    ]  # fmt: skip
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    skipped = Skipped()
    (pair,) = listing.find(tmp_path, skipped)
    assert pair.captions == ("x",)
    assert skipped.counts == {
        "line of a table cannot be read": 3, "empty caption": 1, "caption is not UTF-8": 2,
    }  # fmt: skip
    assert skipped.first["line of a table cannot be read"] == [
        "x.jsonl line 2: expected a JSON object, got '{\\n'",
        "x.jsonl line 3: expected a JSON object, got '[1]\\n'",
        "x.jsonl line 5: expected file, file_name, image, filename or path, got none",
    ]


@pytest.mark.parametrize("line", [{"text": "a story"}, {"path": "a.png"}, {"a": 1}])
def test_lines_of_json_that_speak_of_something_else_are_refused_once(tmp_path, line):
    put(tmp_path, "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    (tmp_path / "log.jsonl").write_text("\n".join([json.dumps(line)] * 100))
    skipped = Skipped()
    (pair,) = listing.find(tmp_path, skipped)
    assert pair.captions == ("a cat",)
    assert skipped.counts == {"table without pictures and captions": 1}
    assert "log.jsonl line 1: expected an object with file, file_name" in skipped.lines()[0]


def test_a_first_line_of_json_without_a_caption_does_not_make_the_table_another(tmp_path):
    put(tmp_path, "a.png", "b.png")
    (tmp_path / "x.jsonl").write_text('{"file": "a.png", "caption": null}\n{"file": "b.png", "caption": "b"}\n')
    found, counts = find(tmp_path)
    assert list(found) == ["b.png"]
    assert counts == {"empty caption": 1}


@pytest.mark.parametrize("lines", ["file\tcaption\na.png\ta cat, a dog\n", "a cat, a dog\ta.png\n"])
def test_tabs_part_the_columns_of_a_tsv(tmp_path, lines):
    put(tmp_path, "a.png")
    (tmp_path / "x.tsv").write_text(lines)
    for path in (tmp_path, tmp_path / "x.tsv"):
        assert find(path)[0]["a.png"].captions == ("a cat, a dog",)


def test_a_table_beside_the_folder_of_its_pictures_is_read_from_above_both(tmp_path):
    put(tmp_path, "images/0.png")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "x.csv").write_text("file,caption\n../images/0.png,a cat\n")
    with pytest.raises(ValueError, match=r"give the folder above both instead: x\.csv line 2: \.\./images/0\.png"):
        find(tmp_path / "tables")
    assert find(tmp_path)[0]["images/0.png"].captions == ("a cat",)


def test_a_quote_that_is_not_closed_takes_no_caption_along(tmp_path):
    put(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "captions.csv").write_text('file,caption\na.png,x\nb.png,"open\nc.png,y\n')
    found, counts = find(tmp_path)
    assert list(found) == ["a.png"]
    assert counts["line of a table cannot be read"] == 1
    assert counts["picture without a caption"] == 2


def test_links_that_lead_out_of_the_folder_are_refused(tmp_path):
    (tmp_path / "secret.png").write_bytes(PNG)
    put(tmp_path / "set", "a.png")
    os.symlink(tmp_path / "secret.png", tmp_path / "set" / "b.png")
    for name in "ab":
        (tmp_path / "set" / f"{name}.txt").write_text(name)
    found, counts = find(tmp_path / "set")
    assert list(found) == ["a.png"]
    assert counts == {"link leads out of the folder": 1}


def test_a_folder_that_is_a_link_is_read(tmp_path):
    put(tmp_path / "set", "a.png")
    (tmp_path / "set" / "a.txt").write_text("a")
    os.symlink(tmp_path / "set", tmp_path / "link")
    assert list(find(tmp_path / "link")[0]) == ["a.png"]


def test_two_pictures_of_one_name_do_not_share_a_text(tmp_path):
    put(tmp_path, "a.jpg", "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    found, counts = find(tmp_path)
    assert list(found) == ["a.jpg"]
    assert counts == {"name occurs twice": 1}


def test_texts_without_pictures_are_counted(tmp_path):
    put(tmp_path, "a.png")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / ".hidden.png").write_bytes(PNG)
    assert find(tmp_path)[1] == {"caption without a picture": 1}


def test_splits_are_those_of_the_column_or_the_first_folder(tmp_path):
    put(tmp_path, "a.png", "val/b.png", "train/c.png", "other/d.png")
    (tmp_path / "captions.csv").write_text(
        "file,caption,split\na.png,a,test\nval/b.png,b,\ntrain/c.png,c,Valid\nother/d.png,d,\n"
    )
    found, _ = find(tmp_path)
    assert [pair.split for pair in found.values()] == ["valid", None, "valid", "valid"]  # sorted: a, other, train, val


def test_tables_lie_in_the_folders_of_a_split(tmp_path):
    put(tmp_path, "train/a.png", "test/b.png")
    (tmp_path / "train/metadata.csv").write_text("file_name,text\na.png,a\n")
    (tmp_path / "test/metadata.csv").write_text("file_name,text\nb.png,b\n")
    found, _ = find(tmp_path)
    assert {name: pair.split for name, pair in found.items()} == {"train/a.png": "train", "test/b.png": "valid"}


def test_a_picture_in_two_splits_is_in_the_first_only(tmp_path):
    put(tmp_path, "a.png")
    (tmp_path / "captions.csv").write_text("file,caption,split\na.png,a,train\na.png,b,test\n")
    found, counts = find(tmp_path)
    assert (found["a.png"].split, found["a.png"].captions) == ("train", ("a",))
    assert counts == {"picture is in two splits": 1}


def test_a_folder_without_pairs_is_told_what_was_looked_for(tmp_path):
    put(tmp_path, "a.png")
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    with pytest.raises(
        ValueError, match=r"expected pictures with captions: a table .*found no pair; skipped 1"
    ) as caught:
        find(tmp_path)
    said = str(caught.value)
    assert "other.csv: expected a header with file, file_name" in said
    assert "skipped 1, picture without a caption: a.png" in said
    assert "\n" not in said


@pytest.mark.parametrize(("name", "what"), [("none", "there is no such file"), ("a.zip", "it is none of them")])
def test_other_paths_are_refused(tmp_path, name, what):
    (tmp_path / "a.zip").touch()
    with pytest.raises(ValueError, match=f"expected a folder, a .csv, .tsv, .jsonl or .tar file .*; {what}"):
        find(tmp_path / name)


def test_a_single_table_without_columns_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"^x\.csv: expected a header with .* got 'x,y'"):
        find(tmp_path / "x.csv")


def test_the_first_of_each_reason_are_shown_and_all_are_counted():
    skipped = Skipped()
    for i in range(5):
        skipped.add("odd", f"a\udc80{i}")
    assert len(skipped) == 5
    assert skipped.lines() == ["skipped 5, odd: a\\udc800; a\\udc801; a\\udc802; and 2 more"]

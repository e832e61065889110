import json

import pytest

from fullstride.data.pictures import listing, tar_files
from fullstride.data.pictures.found import Skipped

from .making import encoded, picture, tar

PICTURES = [encoded(picture(i)) for i in range(4)]
MEMBERS = [
    ("a.png", PICTURES[0]), ("a.txt", b"a cat\n"),
    ("b.png", PICTURES[1]), ("b.json", json.dumps({"caption": ["one", "two"], "label": "dog"}).encode()),
    ("sub/c.jpeg", encoded(picture(2), "JPEG")), ("sub/c.json", b'{"text": "three", "split": "val"}'),
]  # fmt: skip


def find(path):
    skipped = Skipped()
    return {pair.name: pair for pair in tar_files.pairs(path, path.name, skipped)}, skipped


def written(path, content):
    path.write_bytes(content)
    return path


def test_pictures_are_paired_with_texts_of_the_same_key(tmp_path):
    found, skipped = find(written(tmp_path / "x.tar", tar(MEMBERS)))
    assert {name: pair.captions for name, pair in found.items()} == {
        "x.tar/a": ("a cat",), "x.tar/b": ("one", "two"), "x.tar/sub/c": ("three",),
    }  # fmt: skip
    assert (found["x.tar/b"].label, found["x.tar/sub/c"].split) == ("dog", "valid")
    assert found["x.tar/a"].place.read() == PICTURES[0]
    assert found["x.tar/b"].place.read() == PICTURES[1]
    assert len(skipped) == 0


def test_all_tar_files_of_a_folder_are_used_and_their_folders_are_splits(tmp_path):
    for folder in ("train", "valid"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.tar").write_bytes(tar(MEMBERS[:2]))
    (tmp_path / "more.tar.gz").touch()
    skipped = Skipped()
    found = listing.find(tmp_path, skipped)
    assert [(pair.name, pair.split) for pair in found] == [("train/0.tar/a", "train"), ("valid/0.tar/a", "valid")]
    assert skipped.lines() == ["skipped 1, tar file is packed; unpack it to a .tar: more.tar.gz"]


@pytest.mark.parametrize("cut", ["in a picture", "in a header", "before a header"])
def test_a_tar_file_that_is_cut_short_is_used_as_far_as_it_is_whole(tmp_path, cut):
    content = tar(MEMBERS)
    at = content.index(b"b.png\0")
    size = {"in a picture": at + 700, "in a header": at + 100, "before a header": at}[cut]
    found, skipped = find(written(tmp_path / "x.tar", content[:size]))
    assert list(found) == ["x.tar/a"]
    assert skipped.counts == {"tar file is cut short or damaged": 1}
    assert skipped.lines()[0].startswith("skipped 1, tar file is cut short or damaged: x.tar: ")


def test_what_follows_a_damaged_header_is_named(tmp_path):
    content = bytearray(tar(MEMBERS))
    at = content.index(b"b.png\0")
    content[at : at + 512] = b"\x07" * 512
    found, skipped = find(written(tmp_path / "x.tar", content))
    assert list(found) == ["x.tar/a"]
    assert skipped.counts == {"tar file is cut short or damaged": 1}


@pytest.mark.parametrize("content", [b"", b"no tar file" * 100])
def test_what_is_no_tar_file_is_named(tmp_path, content):
    found, skipped = find(written(tmp_path / "x.tar", content))
    assert not found
    assert skipped.counts == {"tar file cannot be read": 1}


def test_all_that_is_wrong_is_counted(tmp_path):
    members = [
        ("a.png", PICTURES[0]), ("a.txt", b"good"), ("a.png", PICTURES[1]), ("a.jpg", PICTURES[1]), ("a.txt", b"again"),
        ("b.png", PICTURES[1]), ("c.txt", b"nothing"), ("d.png", PICTURES[2]), ("d.txt", b"\xff"),
        ("e.png", PICTURES[3]), ("e.txt", b" "), ("f.png", PICTURES[3]), ("f.json", b"["), ("g.npy", b""),
        ("h.png", PICTURES[3]), ("h.json", b'{"caption": "x", "split": "sometimes"}'),
    ]  # fmt: skip
    found, skipped = find(written(tmp_path / "x.tar", tar(members)))
    assert list(found) == ["x.tar/a"]
    assert found["x.tar/a"].captions == ("good",)
    assert found["x.tar/a"].place.read() == PICTURES[0]
    assert skipped.counts == {
        "name occurs twice": 3, "picture without a caption": 1, "caption without a picture": 1,
        "caption is not UTF-8": 1, "empty caption": 1, "caption cannot be read": 1,
        "split is none of train, valid, val, validation, test, dev": 1,
    }  # fmt: skip


def test_a_tar_file_that_shrinks_while_in_use_is_an_error_with_its_position(tmp_path):
    path = written(tmp_path / "x.tar", tar(MEMBERS))
    place = find(path)[0]["x.tar/b"].place
    path.write_bytes(tar(MEMBERS)[:600])
    with pytest.raises(ValueError, match=r"x\.tar: ends at byte \d+, expected \d+: it was changed while in use"):
        place.read()


def test_a_key_with_a_dot_is_named(tmp_path):
    members = [*MEMBERS[:2], ("v1.0_a.png", PICTURES[1]), ("v1.0_a.txt", b"b"), ("a.seg.npy", b""), ("._a.png", b"")]
    found, skipped = find(written(tmp_path / "x.tar", tar(members)))
    assert list(found) == ["x.tar/a"]
    assert skipped.lines() == ["skipped 2, name has more than one dot: x.tar: v1.0_a.png; x.tar: v1.0_a.txt"]


@pytest.mark.parametrize(("name", "split"), [
    ("train-000.tar", "train"), ("Training_1.tar", "train"), ("val_001.tar", "valid"), ("valid-2-of-3.tar", "valid"),
    ("test-0.tar", "valid"), ("dev.tar", "valid"), ("validation.0.tar", "valid"), ("trainer-0.tar", None),
    ("0-train.tar", None), ("more/val-0.tar", "valid"), ("train/val-0.tar", "train"),
])  # fmt: skip
def test_splits_are_those_that_names_of_tar_files_start_with(tmp_path, name, split):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    written(tmp_path / name, tar(MEMBERS[:2]))
    (pair,) = listing.find(tmp_path, Skipped())
    assert pair.split == split


def test_what_a_member_says_of_its_split_goes_before_the_name_of_the_tar_file(tmp_path):
    found, _ = find(written(tmp_path / "train-0.tar", tar(MEMBERS)))
    assert [pair.split for pair in found.values()] == ["train", "train", "valid"]


def test_a_tar_file_that_is_not_there_any_more_is_named(tmp_path):
    found, skipped = find(tmp_path / "x.tar")
    assert not found
    assert skipped.lines() == ["skipped 1, tar file cannot be read: x.tar: No such file or directory"]

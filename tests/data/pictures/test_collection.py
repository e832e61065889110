import json
import os
import pickle

import numpy as np
import pytest

from fullstride.data.pictures import collection, decoded, reading
from fullstride.data.pictures.similar_captions import same

from .making import encoded, picture, png_header, tar


@pytest.fixture(autouse=True)
def data(monkeypatch, tmp_path):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))


WORDS = ["red dog", "red cat", "blue dog", "blue cat", "green bird", "old house", "tall tree", "red house"]


@pytest.fixture
def folder(tmp_path):
    """Eight pairs."""
    made = tmp_path / "set"
    made.mkdir()
    for i, caption in enumerate(WORDS):
        (made / f"{i}.png").write_bytes(encoded(picture(i)))
        (made / f"{i}.txt").write_text(caption)
    return made


def everything(train, valid):
    return {pair.name: part.picture(i) for part in (train, valid) for i, pair in enumerate(part.pairs)}


def test_pictures_and_captions_of_a_folder_are_all_there(folder):
    train, valid, skipped = collection.load(folder, 8)
    assert (len(train) + len(valid), len(skipped)) == (8, 0)
    for name, found in everything(train, valid).items():
        assert np.array_equal(found, reading.decode((folder / name).read_bytes(), 8))
    for part in (train, valid):
        assert [part.caption(i) for i in range(len(part))] == [WORDS[int(pair.name[0])] for pair in part.pairs]


def test_pictures_are_decoded_once(folder, monkeypatch):
    train, valid, _ = collection.load(folder, 8)
    first = everything(train, valid)
    monkeypatch.setattr(reading, "decode", None)
    again = everything(*collection.load(folder, 8)[:2])
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_a_picture_that_was_changed_is_decoded_again(folder):
    before = collection.load(folder, 8)
    (folder / "0.png").write_bytes(encoded(picture(99)))
    os.utime(folder / "0.png", ns=(5, 5))
    after = collection.load(folder, 8)
    assert np.array_equal(everything(*after[:2])["0.png"], reading.decode(encoded(picture(99)), 8))
    assert {before[0].fingerprint, before[1].fingerprint} != {after[0].fingerprint, after[1].fingerprint}


def test_too_many_pixels_to_keep_are_decoded_when_asked_for(folder, monkeypatch, tmp_path):
    kept = everything(*collection.load(folder, 8)[:2])
    monkeypatch.setattr(decoded, "MOST_BYTES", 8 * 8 * 8 * 3 - 1)
    train, valid, _ = collection.load(folder, 8)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "data").rglob("pictures.bin"))
    assert sizes == [0, 8 * 8 * 8 * 3]
    found = everything(train, valid)
    assert all(np.array_equal(found[name], kept[name]) for name in kept)
    (folder / train.pairs[0].name).write_bytes(b"\0" * train.pairs[0].place.size)
    with pytest.raises(ValueError, match=r"png at byte 0: picture cannot be decoded, .*changed while in use"):
        train.picture(0)


def test_damaged_pictures_are_named_and_the_rest_is_used(folder, recwarn):
    (folder / "0.png").write_bytes(encoded(picture(0, 200, 200), "JPEG")[:-500])
    (folder / "1.png").write_bytes(encoded(picture(0, 1, 1)))
    (folder / "2.png").write_bytes(png_header(20_000, 20_000))
    (folder / "3.png").write_bytes(png_header(10_000, 10_000))
    for _ in range(2):  # the second time from the verdicts
        train, valid, skipped = collection.load(folder, 8)
        assert len(train) + len(valid) == 4
        counts = {reading.BROKEN: 1, reading.TOO_SMALL: 1, reading.TOO_LARGE: 2}
        assert skipped.counts == counts
        assert skipped.first[reading.TOO_SMALL] == ["1.png: expected at least 8 pixels a side, got 1 x 1"]
        assert skipped.first[reading.TOO_LARGE][1] == "3.png: expected at most 64,000,000 pixels, got 10,000 x 10,000"
    assert not recwarn.list


def test_nothing_but_damaged_pictures_is_refused(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.png").write_bytes(b"x")
    (tmp_path / "set" / "a.txt").write_text("a")
    with pytest.raises(
        ValueError, match=r"expected at least 2 pairs, .* got 0; skipped 1, picture cannot be decoded: a"
    ):
        collection.load(tmp_path / "set", 8)


def test_what_is_held_out_is_a_share_that_the_seed_decides(tmp_path):
    members = [(f"{i}.{end}", content) for i in range(200) for end, content in (
        ("png", encoded(picture(i, 8, 8))), ("txt", f"number {i}".encode()))]  # fmt: skip
    (tmp_path / "x.tar").write_bytes(tar(members))
    held = [
        {pair.name for pair in collection.load(tmp_path / "x.tar", 8, 0.2, seed)[1].pairs} for seed in (0, 0, 1)
    ]  # fmt: skip
    assert held[0] == held[1] != held[2]
    assert 25 <= len(held[0]) <= 55
    train, valid, _ = collection.load(tmp_path / "x.tar", 8, 0.2)
    assert not {pair.name for pair in train.pairs} & held[0]
    assert len(train) + len(valid) == 200


@pytest.mark.parametrize(("share", "num"), [(1e-9, 2), (1 - 1e-9, 7)])
def test_both_parts_have_something(folder, share, num):
    train, valid, _ = collection.load(folder, 8, share)
    assert (len(train), len(valid)) == (8 - num, num)


@pytest.mark.parametrize("share", [0, 1, -0.5])
def test_a_share_that_is_none_is_refused(folder, share):
    with pytest.raises(ValueError, match="valid_share: expected a number above 0 and below 1, got"):
        collection.load(folder, 8, share)


def test_a_split_that_is_said_is_kept(folder):
    lines = [{"file": f"{i}.png", "caption": word} | ({"split": "test"} if i in (3, 5) else {})
             for i, word in enumerate(WORDS)]  # fmt: skip
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    train, valid, _ = collection.load(folder, 8)
    assert [pair.name for pair in valid.pairs] == ["3.png", "5.png"]
    assert len(train) == 6


def test_folders_train_and_val_are_splits(folder):
    for i in range(8):
        part = "val" if i < 3 else "train"
        (folder / part).mkdir(exist_ok=True)
        for end in ("png", "txt"):
            (folder / f"{i}.{end}").rename(folder / part / f"{i}.{end}")
    train, valid, _ = collection.load(folder, 8)
    assert [pair.name for pair in valid.pairs] == ["val/0.png", "val/1.png", "val/2.png"]
    assert len(train) == 5


@pytest.fixture
def source(folder):
    """All eight, and two that are held out, of which one has two captions."""
    lines = [{"file": f"{i}.png", "caption": [word, f"a {word}"] if i == 0 else word} for i, word in enumerate(WORDS)]
    for name, caption in (("8", "RED  dog"), ("9", "something else")):
        (folder / f"{name}.png").write_bytes(encoded(picture(int(name))))
        lines.append({"file": f"{name}.png", "caption": caption, "split": "valid" if name == "9" else "train"})
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return collection.load(folder, 8)[0]


def test_draws_choose_among_the_captions_of_a_picture(source):
    assert source.caption(0) == "red dog"
    assert {source.caption(0, draw) for draw in range(20)} == {"red dog", "a red dog"}
    assert {source.caption(1, draw) for draw in range(20)} == {"red cat"}


@pytest.mark.parametrize("kind", ["easy", "medium", "hard"])
def test_wrong_captions_are_never_own_ones(source, kind):
    for i in range(len(source)):
        own = {same(caption) for caption in source.pairs[i].captions}
        assert not own & {same(source.wrong_caption(i, kind, draw)) for draw in range(50)}


def test_easy_captions_are_those_of_all_others(source):
    others = {*WORDS, "a red dog", "RED dog"} - {"green bird"}
    assert {source.wrong_caption(4, "easy", draw) for draw in range(300)} == others


def test_medium_captions_share_a_word(source):
    assert {source.wrong_caption(3, "medium", draw) for draw in range(100)} == {"blue dog", "red cat"}


def test_hard_captions_share_the_most(source):
    assert source.wrong_caption(1, "hard") in ("red dog", "RED dog", "a red dog", "red house", "blue cat")
    assert source.wrong_caption(1, "hard") == "blue cat"  # two have cat, five have red
    assert len({source.wrong_caption(1, "hard", draw) for draw in range(50)}) == 4


def test_where_nothing_is_alike_an_easy_one_is_given(source):
    for draw in range(10):
        easy = source.wrong_caption(4, "easy", draw)
        assert source.wrong_caption(4, "medium", draw) == source.wrong_caption(4, "hard", draw) == easy


def test_what_is_given_depends_on_nothing_that_was_asked_before(source, folder):
    asked = [(i, kind, draw) for i in range(len(source)) for kind in ("easy", "medium", "hard") for draw in range(4)]
    found = [source.wrong_caption(*what) for what in asked]
    other = collection.load(folder, 8)[0]
    assert [other.wrong_caption(*what) for what in reversed(asked)] == found[::-1]
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.wrong_caption(*what) for what in asked] == found
    assert np.array_equal(copy.picture(3), source.picture(3))


def test_captions_that_are_all_the_same_have_no_wrong_one(folder):
    for i in range(8):
        (folder / f"{i}.txt").write_text("The same")
    train, _, _ = collection.load(folder, 8)
    with pytest.raises(ValueError, match=r"^expected captions that differ, to have wrong ones; all \d pairs have that"):
        train.wrong_caption(0, "hard")


def test_labels_make_classes_of_what_is_held_out(folder):
    rows = [f"{i}.png,{word},{word.split()[1]},{'valid' if i < 4 else 'train'}" for i, word in enumerate(WORDS)]
    (folder / "x.csv").write_text("\n".join(["file,caption,label,split", *rows]))
    train, valid, _ = collection.load(folder, 8)
    (classes,) = valid.classes()
    assert (classes.name, list(classes.prompts)) == ("class", ["a picture of cat", "a picture of dog"])
    assert list(classes.labels) == [1, 0, 1, 0]
    assert np.array_equal(classes.picture(2), valid.picture(2))
    assert train.classes() == ()


def test_pairs_without_a_label_are_in_no_class(folder):
    rows = [f"{i}.png,{word},{word.split()[1] if i else ''},{'valid' if i < 4 else ''}" for i, word in enumerate(WORDS)]
    (folder / "x.csv").write_text("\n".join(["file,caption,class,split", *rows]))
    (classes,) = collection.load(folder, 8)[1].classes()
    assert list(classes.labels) == [0, 1, 0]
    assert np.array_equal(classes.picture(0), reading.decode((folder / "1.png").read_bytes(), 8))


def test_a_fingerprint_tells_other_content_and_no_other_place(folder, tmp_path):
    first = collection.load(folder, 8)[0].fingerprint
    assert collection.load(folder, 8)[0].fingerprint == first
    folder.rename(tmp_path / "elsewhere")
    moved = tmp_path / "elsewhere"
    train = collection.load(moved, 8)[0]
    assert train.fingerprint == first
    assert collection.load(moved, 16)[0].fingerprint != first
    (moved / train.pairs[0].name).with_suffix(".txt").write_text("another word")
    assert collection.load(moved, 8)[0].fingerprint != first


# ---- emoji


CATEGORIES = ["Flags", "Objects"]


@pytest.fixture
def emoji(tmp_path):
    made = tmp_path / "emoji"
    made.mkdir()
    for v, vendor in enumerate(("google", "twitter", "fluent")):
        members = []
        for i in range(20):
            about = {"caption": [f"thing {i}"], "category": CATEGORIES[i % 2], "subcategory": "x"}
            members += [(f"{i:x}.png", encoded(picture(100 * v + i))), (f"{i:x}.json", json.dumps(about).encode())]
        (made / f"{vendor}.tar").write_bytes(tar(members))
    return made


def test_emoji_of_one_vendor_are_held_out(emoji):
    train, valid, skipped = collection.load_emoji(emoji, 8, "google", num_valid=None)
    assert (len(train), len(valid), len(skipped)) == (40, 20, 0)
    assert {pair.name.split("/")[0] for pair in valid.pairs} == {"google"}
    assert {pair.name.split("/")[0] for pair in train.pairs} == {"twitter", "fluent"}
    assert np.array_equal(valid.picture(3), reading.decode(encoded(picture(3)), 8))
    assert valid.caption(3) == "thing 3"


def test_some_emoji_of_the_vendor_are_drawn_by_the_seed(emoji):
    names = [
        [pair.name for pair in collection.load_emoji(emoji, 8, seed=seed, num_valid=5)[1].pairs] for seed in (0, 0, 1)
    ]
    assert names[0] == names[1] != names[2]
    assert len(names[0]) == 5


def test_categories_of_emoji_are_classes(emoji):
    train, valid, _ = collection.load_emoji(emoji, 8, num_valid=None)
    (classes,) = valid.classes()
    assert classes.name == "category"
    prompts = [classes.prompts[label] for label in classes.labels[:2]]
    assert prompts == ["the flag of a country", "a thing of daily life"]
    assert train.classes() == ()


def test_emoji_that_are_missing_are_fetched_by_a_command_that_is_named(emoji):
    (emoji / "fluent.tar").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"^no fluent\.tar in .*: `fullstride data emoji --path .*` fetches it$"
    ):
        collection.load_emoji(emoji, 8)


def test_a_vendor_that_nobody_knows_is_refused(emoji):
    with pytest.raises(ValueError, match="held_out: expected one of google, twitter, fluent, got 'apple'"):
        collection.load_emoji(emoji, 8, "apple")

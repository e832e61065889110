"""Recipe clip on pictures and captions of one's own, in every form they come in, and on emoji; what is not right."""

import csv
import functools
import json
import re
import shutil

import numpy as np
import pytest

from fullstride import cli
from fullstride.data.pictures import reading
from fullstride.data.pictures.collection import Collection
from fullstride.recipes.clip import ClipConfig
from fullstride.recipes.clip.task import ClipTask
from fullstride.run_folder import metrics
from fullstride.train.trainer import Trainer

from ..cli.commands import one_line
from ..data.pictures.making import encoded, picture, plain, tar
from .drawn import SCENES, draw, draw_pairs, emoji
from .tiny_clip import MODEL, tiny

TINY = [
    *(word for name, value in MODEL.items() for word in (f"--model.{name.replace('_', '-')}", str(value))),
    "--steps", "2", "--micro-batch", "4", "--data.tokenizer", "characters", "--data.workers", "0", "--threads", "1",
    "--precision", "fp32", "--evaluation.every", "2", "--evaluation.batch", "6", "--no-report", "--quiet",
]  # fmt: skip
SKIPPED = re.compile(r"skipped (\d+), (.*?): (.*)")


@pytest.fixture(autouse=True)
def data(monkeypatch, tmp_path):
    """Where decoded pictures are kept."""
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))


def train(capsys, path, run, *words):
    """(exit code, what was printed, what was on stderr)"""
    arguments = ["train", "clip-small", "--data.name", "pairs", "--data.path", str(path), "--run", str(run), *TINY]
    code = cli.main([*arguments, *words])
    return code, *capsys.readouterr()


def pairs_of(part):
    assert isinstance(part.source, Collection)
    return part.source.pairs


def losses(run):
    return {
        kind: [row["loss"] for row in metrics.read(run) if row["kind"] == kind and "loss" in row]
        for kind in ("train", "eval")
    }


# ---- forms -----------------------------------------------------------------------------------------------------------


def texts(folder):
    draw_pairs(folder, 12)
    return folder


def commas(folder):
    paths = draw(folder, 12)
    with open(folder / "captions.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "caption"])
        rows.writerows([path.name, SCENES.caption(i)] for i, path in enumerate(paths))
    return folder / "captions.csv"


def lines(folder):
    paths = draw(folder, 12)
    rows = [{"file_name": path.name, "text": [SCENES.caption(i)]} for i, path in enumerate(paths)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "metadata.jsonl"


def archive(folder):
    members = []
    for i, path in enumerate(draw(folder / "aside", 12)):
        members += [(path.name, path.read_bytes()), (f"{path.stem}.txt", SCENES.caption(i).encode())]
    (folder / "shard-000.tar").write_bytes(tar(members))
    shutil.rmtree(folder / "aside")
    return folder / "shard-000.tar"


FORMS = {"texts": texts, "csv": commas, "jsonl": lines, "tar": archive}


@pytest.mark.parametrize("form", FORMS)
def test_pairs_of_every_form_are_trained_on(form, tmp_path, capsys):
    path = FORMS[form](tmp_path / "pairs")
    code, out, err = train(capsys, path, tmp_path / "run")
    assert (code, err) == (0, "")
    assert "done    2 steps" in out
    found = losses(tmp_path / "run")
    assert len(found["train"]) >= 1
    assert len(found["eval"]) == 1
    assert np.isfinite(found["train"] + found["eval"]).all()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_trained_on_are_the_pictures_with_their_own_captions(form, tmp_path):
    path = FORMS[form](tmp_path / "pairs")
    task = tiny(data={"name": "pairs", "path": str(path), "valid_share": 0.25}).task()
    found = {
        part.source.caption(i): part.source.picture(i)
        for part in (task.train_data, task.valid_data) for i in range(len(part))
    }  # fmt: skip
    assert len(found) == len(task.train_data) + len(task.valid_data) == 12
    for i in range(12):
        from PIL import Image

        expected = reading.decode(encoded(Image.fromarray(SCENES.picture(i))), 16)
        assert np.array_equal(found[SCENES.caption(i)], expected)


def test_the_folder_of_a_table_and_the_table_are_the_same_data(tmp_path):
    table = lines(tmp_path / "pairs")
    whole, alone = (
        tiny(data={"name": "pairs", "path": str(path)}).task().fingerprint for path in (table.parent, table)
    )  # fmt: skip
    assert whole == alone


def test_a_relative_path_is_found_again_from_elsewhere(tmp_path, monkeypatch, capsys):
    texts(tmp_path / "pairs")
    monkeypatch.chdir(tmp_path)
    assert train(capsys, "pairs", tmp_path / "run")[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 0
    assert "recall_1" in capsys.readouterr().out


def test_labels_are_classes_of_the_full_evaluation(tmp_path, capsys):
    paths = draw(tmp_path / "pairs", 16)
    rows = [
        {"file": path.name, "caption": f"a {kind} thing, number {i}", "label": kind, "split": split}
        for i, path in enumerate(paths)
        for kind in [("round", "square")[i % 2]] for split in [("train", "valid")[i >= 8]]
    ]  # fmt: skip
    (tmp_path / "pairs" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train(capsys, tmp_path / "pairs", tmp_path / "run")[0] == 0
    assert cli.main(["evaluate", str(tmp_path / "run"), "--full"]) == 0
    assert "zero-shot: class (2)" in capsys.readouterr().out


# ---- what is not right -----------------------------------------------------------------------------------------------


@functools.cache
def huge():
    """49 kB, and 1.2 GB as RGB."""
    return encoded(plain(1, "1", 20_000, 20_000))


def spoil(folder):
    """The rest is good: {reason: the names it is told with}."""

    def put(name, content, caption="a thing"):
        (folder / name).write_bytes(content)
        if caption is not None:
            (folder / name).with_suffix(".txt").write_text(caption)

    jpeg = encoded(picture(1, 64, 64), "JPEG")
    put("cut.jpg", jpeg[:-300])
    put("cut-too.jpg", jpeg[: len(jpeg) // 2])
    put("dot.png", encoded(plain("red", width=1, height=1)))
    put("huge.png", huge())
    put("blank.png", encoded(picture(2)), " \n\t")
    put("silent.png", encoded(picture(3)), None)
    (folder / "alone.txt").write_text("what is not there")
    return {
        "picture cannot be decoded": ["cut.jpg", "cut-too.jpg"], "picture is too small": ["dot.png"],
        "picture is too large": ["huge.png"], "empty caption": ["blank.txt"],
        "picture without a caption": ["silent.png"], "caption without a picture": ["alone.txt"],
    }  # fmt: skip


def test_all_that_is_wrong_is_named_once_and_counted_and_the_rest_is_trained_on(tmp_path, capsys):
    draw_pairs(tmp_path / "pairs", 10)
    (tmp_path / "pairs" / "alpha.png").write_bytes(encoded(plain((255, 0, 0, 128), "RGBA")))
    (tmp_path / "pairs" / "alpha.txt").write_text("half of a red one")
    expected = spoil(tmp_path / "pairs")
    code, out, err = train(capsys, tmp_path / "pairs", tmp_path / "run")
    assert code == 0
    assert "done    2 steps" in out
    found = {match[2]: (int(match[1]), match[3]) for match in map(SKIPPED.search, err.splitlines()) if match}
    assert found.keys() == expected.keys()
    assert len(err.splitlines()) == len(expected)
    for reason, names in expected.items():
        count, said = found[reason]
        assert count == len(names)
        assert all(said.count(name) == 1 for name in names)
    assert (tmp_path / "run" / "log.txt").read_text().count("huge.png") == 1
    task = tiny(data={"name": "pairs", "path": str(tmp_path / "pairs")}).task()
    names = {pair.name for part in (task.train_data, task.valid_data) for pair in pairs_of(part)}
    assert names == {"alpha.png", *(f"scene-{i:02d}.png" for i in range(10))}


def test_half_of_red_is_pink():
    """What is transparent is seen on white."""
    found = reading.decode(encoded(plain((255, 0, 0, 128), "RGBA")), 16)
    assert np.abs(found.reshape(-1, 3).mean(0) - [255, 127, 127]).max() <= 1


def broken_alone(folder):
    folder.mkdir()
    spoil(folder)


def all_the_same(folder):
    for path in draw_pairs(folder, 6):
        path.with_suffix(".txt").write_text("a thing")


def without_captions(folder):
    draw(folder, 3)


def captions_alone(folder):
    for path in draw_pairs(folder, 3):
        path.unlink()


def one_pair(folder):
    draw_pairs(folder, 1)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda folder: None, "pairs: expected a folder, a .csv, .tsv, .jsonl or .tar file of pictures and captions"),
        (lambda folder: folder.mkdir(), "expected pictures with captions: a table (captions.csv"),
        (without_captions, "found no pair; skipped 3, picture without a caption: scene-00.png; scene-01.png"),
        (captions_alone, "found no pair; skipped 3, caption without a picture: scene-00.txt; scene-01.txt"),
        (one_pair, "expected at least 2 pairs, to hold one out, got 1"),
        (broken_alone, "expected at least 2 pairs, to hold one out, got 0; skipped 1, empty caption: blank.txt; "),
        (all_the_same, "expected captions that differ, to have wrong ones"),
    ],
    ids=["no folder", "nothing in it", "no captions", "no pictures", "one pair", "nothing good", "one caption"],
)
def test_if_nothing_is_left_it_is_one_line_and_no_run(make, line, tmp_path, capsys):
    make(tmp_path / "pairs")
    code, out, err = train(capsys, tmp_path / "pairs", tmp_path / "run")
    assert (code, out) == (2, "")
    assert line in one_line(err)
    assert not (tmp_path / "run").exists()


def test_captions_of_one_kind_held_out_are_found_before_the_first_step(tmp_path, capsys):
    """An evaluation would find out, an epoch later."""
    folder = texts(tmp_path / "pairs")
    rows = [{"file": f"scene-{i:02d}.png", "text": f"thing {i}", "split": "valid" if i else "train"} for i in (0, 1)]
    rows += [{"file": f"scene-{i:02d}.png", "text": f"thing {i}", "split": "train"} for i in range(2, 12)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = train(capsys, folder, tmp_path / "run")
    assert code == 2
    assert "all 1 pairs have that of scene-01.png; give more pairs, or hold out more" in one_line(err)
    assert not (tmp_path / "run").exists()


# ---- emoji -----------------------------------------------------------------------------------------------------------


def emoji_config(**data: object) -> ClipConfig:
    return tiny(steps=2, data={"name": "emoji", **data})


def test_emoji_of_two_vendors_are_trained_on_and_those_of_the_third_held_out(tmp_path):
    emoji(tmp_path / "data" / "emoji")  # where `fullstride data emoji` puts them
    run = tmp_path / "run"
    trainer = Trainer(emoji_config(held_out="google"), run)
    trainer.quiet = True
    trainer.fit()
    task = trainer.task
    assert isinstance(task, ClipTask)
    train, valid = task.train_data.source, task.valid_data.source
    assert (len(train), len(valid)) == (12, 6)
    assert valid.caption(0) == "apple thing"
    assert {train.caption(0, draw) for draw in range(20)} == {"apple thing", "such a apple"}
    assert np.isfinite(losses(run)["eval"]).all()


def test_categories_of_emoji_are_told_apart_without_training(tmp_path):
    task = emoji_config(path=str(emoji(tmp_path / "mine"))).task()
    rows = {row["what"]: row for row in task.assess(task.build_model().eval(), tmp_path)}
    assert rows["zero-shot: category (9)"]["chance"] == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no google.tar in DATA/emoji: `fullstride data emoji` fetches it"),
        (["--data.path", "none"], "no google.tar in HERE/none: `fullstride data emoji --path HERE/none` fetches it"),
        (["--data.path", "mine", "--data.held-out", "apple"], "held_out: expected one of google, twitter, fluent, got"),
    ],
)
def test_emoji_that_are_not_there_are_one_line(words, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    emoji(tmp_path / "mine")
    arguments = ["train", "clip-small", "--data.name", "emoji", "--run", str(tmp_path / "run"), *TINY, *words]
    assert cli.main(arguments) == 2
    line = line.replace("HERE", str(tmp_path)).replace("DATA", str(tmp_path / "data"))
    assert line in one_line(capsys.readouterr().err)

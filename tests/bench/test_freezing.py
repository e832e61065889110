"""The experiments of freezing: a real run that branches off another one, and what is told of the outcome."""

import xml.dom.minidom

import pytest
from benchmarks import freezing, freezing_picture

import fullstride
from fullstride.run_folder import metrics


def row(case, seed, loss, saved=0.0, task="char"):
    points = [{"step": step, "moved": {"a": 1 / step, "b": 2 / step}} for step in (31, 61, 91)]
    norms = [{"step": step, "norms": {"a.0.w": 1.0, "a.0.v": None, "b": 2.0}} for step in (10, 20)]
    return {
        "task": task, "case": case, "seed": seed, "steps": 100, "valid": {"loss": loss, "accuracy": loss},
        "saved_compute": saved, "frozen": [], "moved": points, "norms": norms,
    }  # fmt: skip


PLAIN = [row("none", 0, 1.5), row("none", 1, 1.6)]
ROWS = [*PLAIN, row("slowed-0.2-1", 0, 1.51, 0.15), row("slowed-0.2-1", 1, 1.63, 0.17)]


def test_what_is_lost_is_the_difference_to_the_same_seed():
    assert freezing.lost(ROWS, "char") == {"slowed-0.2-1": pytest.approx([0.01, 0.03])}
    assert freezing.table(ROWS)[-1] == (
        "| char | slowed-0.2-1 | 16.0 % [15.0..17.0] | +0.0200 nats [+0.0100, +0.0300] |"
    )


def test_a_lower_accuracy_is_a_loss_in_points():
    rows = [row("none", 0, 0.97, task="mnist"), row("slowed-0.2", 0, 0.95, task="mnist")]
    assert freezing.lost(rows, "mnist") == {"slowed-0.2": pytest.approx([2.0])}


def test_the_picture_shows_curves_and_what_was_saved():
    pytest.importorskip("matplotlib")
    picture = freezing_picture.draw(ROWS)
    xml.dom.minidom.parseString(picture)
    assert "0.2-1" in picture
    assert "nats lost" in picture


def test_a_run_that_branches_off_is_the_whole_run(tmp_path, monkeypatch):
    config = fullstride.recipes.mlp().replace(
        steps=60, micro_batch=16, accumulate=1, threads=1, precision="fp32", model={"hidden": [16, 16, 16]},
        data={"num_samples": 200, "num_features": 32, "num_classes": 4, "num_valid": 40, "workers": 0},
        optimizer={"lr": 1e-2}, logging={"every": 1}, evaluation={"every": 0},
        checkpoints={"every": 5, "keep": 40, "background": False},
    )  # fmt: skip

    def configure(folder, task, case, seed):
        threshold = freezing.NEVER if case == "none" else float(case.split("-")[1])
        return config.replace(seed=seed, freeze={"enabled": True, "threshold": threshold, "patience": 5})

    monkeypatch.setattr(freezing, "configure", configure)
    freezing.result(tmp_path, "char", "none", 3)
    branched = freezing.result(tmp_path, "char", "slowed-0.5", 3)
    rows = metrics.read(tmp_path / "char-slowed-0.5-3" / "metrics.jsonl")
    assert [row["attempt"] for row in rows if row.get("event") == "start"] == [1, 2]
    monkeypatch.setattr(freezing, "last_in_common", lambda *_: None)
    whole = freezing.result(tmp_path / "other", "char", "slowed-0.5", 3)
    assert branched["frozen"]
    assert (branched["frozen"], branched["valid"]) == (whole["frozen"], whole["valid"])
    assert branched["saved_compute"] == whole["saved_compute"]

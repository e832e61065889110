"""What the picture shows of trials that are made up here."""

import pytest

from fullstride.report import drawing
from fullstride.report.section import WIDTH
from fullstride.studies.tune import outcome, pages

from . import tiny

SETTINGS = {
    "threads": None, "micro_batch": 128, "accumulate": 8, "precision": "auto", "data.workers": "auto",
    "overlap_weight_grads": False,
}  # fmt: skip


def spread(value):
    return {"median": value, "lowest": 0.9 * value, "highest": 1.1 * value}


def part(dimension, rung, label, value, **changes):
    found = {"dimension": dimension, "rung": rung, "label": label, "settings": {**SETTINGS, **changes}, "steps": 9}
    return found | ({"failed": value} if isinstance(value, str) else {"units_per_second": spread(value), "peak": 2e9})


PARTS = {
    "machine": {},
    "a": part("precision", 1, "auto (fp32)", 100.0),
    "b": part("precision", 1, "bf16", 150.0, precision="bf16"),
    "c": part("micro-batch", 1, "8 x 128", 151.0, precision="bf16"),
    "d": part("micro-batch", 1, "4 x 256", 140.0, precision="bf16", micro_batch=256),
    "e": part("micro-batch", 1, "1 x 1024", "too much memory: held 9 GiB", precision="bf16", micro_batch=1024),
    "f": part("micro-batch", 2, "8 x 128", 152.0, precision="bf16"),
    "g": part("micro-batch", 2, "4 x 256", 141.0, precision="bf16", micro_batch=256),
}
BEST = {**SETTINGS, "precision": "bf16"}
CONTENT = {
    "recipe": "mlp", "unit": "samples", "took": 300.0, "tried": 3, "rounds": 6, "taken": "best", "ratio": spread(1.5),
    "default": {"settings": SETTINGS, "words": "as it is", "units_per_second": spread(101.0),
                "precision": "fp32"},
    "best": {"settings": BEST, "words": "bf16", "units_per_second": spread(151.0), "precision": "bf16"},
    "changes": {"precision": ["auto", "bf16"]}, "left_out": {"fp16": "slow", "1 thread": "slow", "overlap": "no time"},
    "inter_op_started": False, "search": None, "config": "tuned.yaml", "processes": 1,
}  # fmt: skip
TRIALS = [
    {"values": {"lr": 1e-3}, "state": "complete", "why": "", "points": [[1.0, 2.0], [2.0, 1.5]], "steps": 50},
    {"values": {"lr": 1e-2}, "state": "pruned", "why": "", "points": [[1.0, 9.0]], "steps": 20},
    {"values": {"lr": 1e-1}, "state": "failed", "why": "its loss is not finite", "points": [[1.0, None]], "steps": 20},
    {"values": {"lr": 2e-3}, "state": "complete", "why": "", "points": [[1.0, 1.8], [2.0, 1.2]], "steps": 50},
]
SEARCH = {
    "names": ["lr"], "seconds": 2.0, "is_whole": False, "trials": TRIALS, "best": 3, "stopped": "", "taken": "best",
    "finals": [{"seed": 1, "default": 1.4, "best": 1.2}, {"seed": 2, "default": 1.5, "best": 1.3}],
}  # fmt: skip


def test_a_row_for_each_value_under_its_dimension_with_all_rungs():
    rows = pages.rows_of(PARTS, CONTENT)
    assert [(row.label, len(row.spreads), row.kind) for row in rows] == [
        ("precision", 0, "header"), ("auto (fp32), default", 1, ""), ("bf16", 1, "taken"),
        ("micro-batch", 0, "header"), ("8 x 128, default", 2, "taken"), ("4 x 256", 2, ""), ("1 x 1024", 0, ""),
        ("final, 6 rounds", 0, "header"), ("default", 1, ""), ("best", 1, "taken"),
    ]  # fmt: skip
    assert rows[6].note == "too much memory: held 9 GiB"


def test_without_a_trial_the_default_stands_alone():
    rows = pages.rows_of({}, {**CONTENT, "ratio": None, "taken": "default"})
    assert [(row.label, row.kind) for row in rows] == [("default", "taken")]


@pytest.mark.parametrize("search", [None, SEARCH])
def test_page_and_picture_are_drawn(search, tmp_path):
    with tiny.opened(tmp_path / "study") as study:
        for name, each in PARTS.items():
            study.record(name, each)
        page, picture = pages.write(study, {**CONTENT, "search": search})
    text = page.read_text()
    assert "1.50x [1.35..1.65] of the default" in text
    assert "too much memory: held 9 GiB" in text
    assert "in bf16 instead of fp32" in text
    assert ("validation loss 1.200 against 1.400 (seed 1), 1.300 against 1.500 (seed 2)" in text) == bool(search)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_says_how_many_processes_train(tmp_path):
    assert "processes" not in pages._picture([], CONTENT, None).caption
    assert pages._picture([], {**CONTENT, "processes": 4}, None).caption.endswith(", in 4 processes")


def test_trials_that_ended_early_are_faint():
    import matplotlib.figure

    figure = matplotlib.figure.Figure()
    pages._losses(SEARCH)(figure.subplots())
    faint = [line.get_alpha() is not None for line in figure.axes[0].lines]
    assert faint == [False, True, True, False]
    assert drawing.png(pages._alone(pages._losses(SEARCH)), WIDTH, 3.0).startswith(b"\x89PNG")


def test_what_was_left_out_is_a_line_a_reason():
    assert outcome.left_out(CONTENT) == ["fp16, 1 thread: slow", "overlap: no time"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "1.50x [1.35..1.65] of the default's speed"),
        (
            {"taken": "default", "ratio": {"median": 1.0, "lowest": 0.98, "highest": 1.02}},
            "the default is already best: 1.00x [0.98..1.02] for the best other, which was not faster in every round",
        ),
        ({"taken": "default", "ratio": None, "tried": 0}, "the default stays: nothing else was tried"),
        ({"taken": "default", "ratio": None}, "the default is already best: nothing else was more than 2 % faster"),
    ],
)
def test_the_gain_is_one_line(changes, expected):
    assert outcome.gain({**CONTENT, **changes}) == expected


def test_another_precision_is_named_apart():
    assert outcome.same(CONTENT).endswith(". It is in bf16 instead of fp32: other rounding; see docs/numerics.md.")
    assert outcome.same({**CONTENT, "taken": "default"}) == outcome.SAME
    assert "precision" not in outcome.SAME


def test_a_search_that_found_nothing_better_says_so():
    assert outcome.search_gain({**SEARCH, "taken": "default"}).startswith("the recipe's own values stay: the best")
    assert outcome.search_gain({**SEARCH, "finals": []}).startswith("the recipe's own values are already best")

"""Verdicts, rankings, the product of single gains, and the text, of figures that were made up."""

import json

import pytest

from fullstride.studies.ablate import outcome, page, table
from fullstride.studies.ablate.outcome import FASTER, SAME, SLOWER, TOGETHER, UNKNOWN
from fullstride.studies.ablate.switching import ADDED, ALONE, LEFT_OUT


def gain(median, lowest=None, highest=None):
    return {"median": median, "lowest": lowest or 0.99 * median, "highest": highest or 1.01 * median}


def part(technique, way, figures, has_it=None, **more):
    spread = {"median": 0.1, "lowest": 0.09, "highest": 0.11}
    return {
        "technique": technique, "way": way, "has_it": way != LEFT_OUT if has_it is None else has_it, "gain": figures,
        "note": "", "rounds": 5, "steps": 2, "seconds_with": spread, "seconds_without": spread,
        "memory": {"step": 8, "with": 100 << 20, "without": 120 << 20},
        "loss": {"step": 8, "mean_of": 5, "with": 1.5, "without": 1.25, "difference": gain(0.25, 0.2, 0.3)},
    } | more  # fmt: skip


PARTS = {
    "what there is to switch": {"took": 1.0},
    TOGETHER: part("all together", ALONE, gain(3.0)),
    "heap, alone": part("heap", ALONE, gain(1.25)),
    "optimizer, alone": part("optimizer", ALONE, gain(1.2)),
    "bf16, alone": part("bf16", ALONE, gain(1.8)),
    "lamb, alone": part("lamb", ALONE, gain(0.9)),
    "overlap, alone": {"technique": "overlap", "way": ALONE, "has_it": True, "failed": "aborted"},
    "heap, left out": part("heap", LEFT_OUT, gain(1.1)),
    "optimizer, left out": part("optimizer", LEFT_OUT, gain(1.0, 0.9, 1.1)),
    "bf16, left out": part("bf16", LEFT_OUT, gain(1.7)),
    "lamb, added": part("lamb", ADDED, gain(0.8)),
}


@pytest.mark.parametrize(
    ("median", "lowest", "highest", "expected"),
    [
        (1.2, 1.15, 1.25, FASTER),
        (0.8, 0.75, 0.85, SLOWER),
        (1.2, 0.98, 1.3, SAME),  # the rounds do not agree
        (1.02, 1.0, 1.04, SAME),
        (1.04, 1.01, 1.11, SAME),  # smaller than what they lie apart
        (3.0, 2.0, 4.5, FASTER),
    ],
)
def test_the_rounds_decide_on_the_verdict(median, lowest, highest, expected):
    assert outcome.verdict(gain(median, lowest, highest), 5) == expected


def test_below_five_rounds_there_is_no_verdict():
    assert [outcome.verdict(gain(2.0), rounds) for rounds in (3, 4, 5)] == [UNKNOWN, UNKNOWN, FASTER]
    few = part("heap", ALONE, gain(2.0), rounds=3)
    assert table.said(few) == "2.00x [1.98..2.02] too few rounds (3 rounds)"
    [entry] = outcome.outcome({"heap, alone": few}, {}, is_all=True)["alone"]
    assert (entry["rounds"], entry["verdict"]) == (3, UNKNOWN)


def test_the_largest_gain_comes_first_and_losses_are_shown_as_such():
    found = outcome.outcome(PARTS, {}, is_all=True)
    assert [(entry["technique"], entry["verdict"]) for entry in found["alone"]] == [
        ("bf16", FASTER), ("heap", FASTER), ("optimizer", FASTER), ("lamb", SLOWER),
    ]  # fmt: skip
    assert [(entry["technique"], entry["verdict"]) for entry in found["within"]] == [
        ("bf16", FASTER), ("heap", FASTER), ("optimizer", SAME), ("lamb", SLOWER),
    ]  # fmt: skip
    assert found["failed"] == {"overlap, alone": "aborted"}


def test_the_product_is_of_what_is_in_all_and_counts_nothing_twice():
    found = outcome.product(PARTS)
    assert found["factors"] == pytest.approx({"bf16": 1.8 / 1.2, "heap": 1.25, "optimizer": 1.2})
    assert found["gain"]["median"] == pytest.approx(1.8 * 1.25)
    assert found["gain"]["lowest"] < found["gain"]["median"] < found["gain"]["highest"]


def test_what_is_needed_and_was_not_measured_is_named_with_the_gain():
    parts = {name: found for name, found in PARTS.items() if not name.startswith("optimizer")}
    assert outcome.product(parts)["factors"] == {"bf16 with optimizer": 1.8, "heap": 1.25}


def test_what_stock_pytorch_has_as_well_is_no_factor():
    left = {"lamb, left out": part("lamb", LEFT_OUT, gain(1))}
    assert outcome.product(left | {"lamb, alone": part("lamb", ALONE, gain(0.9), has_it=False)}) is None
    assert outcome.product(left | {"lamb, alone": part("lamb", ALONE, gain(0.9))}) is not None


@pytest.mark.parametrize(
    ("whole", "expected"),
    [(1.5, "The whole is less than the product"), (3.0, "The whole is more than the product"), (2.25, "As if each")],
)
def test_a_sentence_tells_why_whole_and_product_differ(whole, expected):
    parts = PARTS | {TOGETHER: part("all together", ALONE, gain(whole))}
    assert outcome.outcome(parts, {}, is_all=True)["sentence"].startswith(expected)


def test_a_wide_product_is_not_taken_for_a_difference():
    sentence = outcome.why_they_differ(gain(2.0, 1.9, 2.1), gain(3.0, 1.0, 9.0))
    assert sentence.endswith("The rounds leave room for both to be the same.")


def test_a_product_of_some_is_not_compared_with_the_whole():
    assert "not to be compared" in outcome.outcome(PARTS, {}, is_all=False)["sentence"]


@pytest.mark.parametrize("alone", [{}, {"overlap, alone": PARTS["overlap, alone"]}], ids=["skipped", "failed"])
def test_a_product_that_lacks_what_has_no_figure_alone_names_it_and_is_not_compared(alone):
    parts = {name: found for name, found in PARTS.items() if name != "overlap, alone"} | alone
    found = outcome.outcome(parts | {"overlap, left out": part("overlap", LEFT_OUT, gain(1.3))}, {}, is_all=True)
    assert found["product"]["missing"] == ["overlap"]
    assert found["sentence"] == (
        "The product lacks what has no figure alone, overlap: it is not to be compared with the whole."
    )
    assert outcome.outcome(parts, {}, is_all=True)["product"]["missing"] == []


def test_the_text_has_both_rankings_with_speed_memory_loss_and_what_is_missing():
    found = outcome.outcome(PARTS, {"norms": "nothing to switch: the model has none"}, is_all=True)
    text = "\n".join(table.lines(PARTS, found))
    alone, rest = text.split("left out of all:")
    left, added = rest.split("added to all, which the recipe does not do:")
    assert "  bf16       1.80x [1.78..1.82]  faster (5 rounds)  120 -> 100 MiB  1.2500 -> 1.5000 [+2.0e-01.." in alone
    assert "optimizer  1.00x [0.90..1.10]  no difference (5 rounds)" in left
    assert "lamb  0.80x [0.79..0.81]  slower" in added
    assert "all over stock PyTorch: 3.00x [2.97..3.03] faster (5 rounds)" in added
    assert "product of 3 single gains: 2.25x" in added
    assert "failed:\n  overlap, alone: aborted" in added
    assert added.endswith("not measured:\n  norms: nothing to switch: the model has none")


def test_a_loss_that_is_not_finite_is_shown_so():
    loss = {"step": 8, "mean_of": 5, "with": None, "without": 1.25, "difference": None}
    assert table.as_loss(loss) == "1.2500 -> not finite"


class Written:
    """Stands for a study."""

    parts = PARTS

    def say(self, text):
        self.said = text

    def write_report(self, title, lead, sections, picture):
        self.title, self.lead, self.sections, self.picture = title, lead, sections, picture
        return []


def test_the_page_has_the_ranking_a_table_and_reasons():
    from fullstride.report import drawing

    from . import tiny

    study = Written()
    found = outcome.outcome(PARTS, {"norms": "nothing to switch: the model has none"}, is_all=True)
    page.write(study, tiny.mlp(), found)
    assert [section.title for section in study.sections] == [
        "Ranking", "Every technique", "Without figures", "What each is",
    ]  # fmt: skip
    assert (
        study.lead
        == "All together take a step 3.00x [2.97..3.03] as fast as stock PyTorch. Alone over it: 3 faster, 1 slower."
    )
    alone, within = study.sections[1].tables
    assert alone.rows[0][:2] == ("bf16", FASTER)
    assert [row[0] for row in within.rows] == ["bf16", "heap", "optimizer", "lamb (added)"]
    assert ("norms", "nothing to switch: the model has none") in study.sections[2].tables[0].rows
    markup = drawing.draw(study.picture, 1)
    assert "lamb (added)" in markup
    assert "var(--vermilion)" in markup


def test_without_a_figure_there_is_no_page():
    study = Written()
    study.parts = {"heap, alone": {"technique": "heap", "way": ALONE, "has_it": True, "failed": "aborted"}}
    assert page.write(study, None, outcome.outcome(study.parts, {}, is_all=False)) == []
    assert study.said == "no report: no technique was measured"


def test_the_outcome_is_plain_json():
    found = outcome.outcome(PARTS, {}, is_all=True)
    assert json.loads(json.dumps(found, allow_nan=False)) == found

import pytest
from benchmarks import figures, render, tables

from .made_up import mechanisms, step, steps

FILES = [steps(step(gain=2.37))]
README = render.rendered("# X\n\nFast.\n\n<!-- begin: gain -->\n<!-- end -->\n\nMore text.\n", FILES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gains 2.37x here", [("2.37", "x")]),
        ("**2.37x** [2.32..2.42]", [("2.37", "x"), ("2.32", "range"), ("2.42", "range")]),
        ("3 times as fast", [("3", "x")]),
        ("150 ms, 1014 / 1275 MiB, 61 %", [("150", "ms"), ("1275", "MiB"), ("61", "%")]),
        ("after 1 min 41 s, or 12 minutes", [("1", "min"), ("41", "s"), ("12", "min")]),
        ("435 GFLOP/s at 48.3 GB/s, 1,264 tokens a second", [("435", "GFLOP/s"), ("48.3", "GB/s"), ("1264", "/s")]),
        ("Python 3.10, torch 2.13.0, 4 x 256 tokens, 50 M parameters, 2 cores, 1 to 200 million", []),
    ],
)
def test_figures_are_numbers_with_a_unit_of_measurement(text, expected):
    assert [(figure.number, figure.unit) for figure in figures.find(text)] == expected


def test_a_rendered_readme_has_no_problem():
    assert "2.37x" in README
    assert figures.problems(README, FILES) == []


def test_prose_may_repeat_what_a_table_shows():
    assert figures.problems(README.replace("Fast.", "Up to 2.37x."), FILES) == []


@pytest.mark.parametrize("other", ["2.73x", "1.85x"], ids=["of no result", "of another place in the results"])
def test_a_changed_figure_of_a_table_is_found(other):
    [problem] = figures.problems(README.replace("2.37x", other), FILES)
    assert problem.startswith(f"{other}, in block 'gain': no result file holds it")


def test_a_figure_that_the_renderer_makes_up_is_found(monkeypatch):
    monkeypatch.setattr(tables, "gain", lambda files: ["| 9.87x |"])
    text = render.rendered(README, FILES)
    assert figures.problems(text, FILES) == [
        "9.87x, in block 'gain': no result file holds it; run make performance",
    ]


@pytest.mark.parametrize(
    "sentence",
    ["It is 2.4x as fast.", "It is 5 times faster.", "A step takes 101 ms.", "It saves 30 % of memory.",
     "Done in 12 minutes.", "It holds 900 MiB.", "It reaches 400 GFLOP/s.", "Rounds were [1.1..1.3]."],
)  # fmt: skip
def test_a_figure_added_in_prose_is_found(sentence):
    problems = figures.problems(README.replace("More text.", sentence), FILES)
    assert problems
    assert all("no table of this document shows it" in problem for problem in problems)


def test_a_figure_in_a_code_block_is_found():
    assert figures.problems(README + "```\nspeed 9.99x\n```\n", FILES)


def test_more_digits_than_the_result_has_are_found():
    assert figures.problems(README.replace("2.37x", "2.371x"), FILES)


def test_what_a_mechanism_earns_is_in_the_results():
    text = render.rendered("<!-- begin: mechanisms avx512_bf16 -->\n<!-- end -->\n", [mechanisms()])
    assert "| `fusion` | 1.031x [1.012..1.044] |" in text
    assert figures.problems(text, [mechanisms()]) == []
    [problem] = figures.problems(text, [mechanisms(median=1.032)])
    assert problem.startswith("1.031x, in block 'mechanisms avx512_bf16': no result file holds it")


def test_a_rule_is_no_measured_figure():
    text = README.replace("More text.", "It stays if it earns 2 %.")
    assert figures.problems(text, FILES, rules=["2 %"]) == []
    assert figures.problems(text, FILES)


def test_parts_by_hand_are_left_out_if_they_say_where_they_come_from():
    part = "<!-- by hand -->\n9.9x, by {}.\n<!-- end by hand -->\n"
    assert figures.problems(README + part.format("`python -m x`, 2026-11-17, commit 0123abc"), FILES) == []
    [problem] = figures.problems(README + part.format("heart"), FILES)
    assert "expected a `command`, a date such as 2026-11-17 and 'commit 0123abc'" in problem

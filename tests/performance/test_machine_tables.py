import pytest
from benchmarks import figures, machine_tables, render, result_files, roofs

from .made_up import kernels, mechanisms, rates, step, steps

OLD, NEW = "some-cpu-avx512_bf16", "some-cpu-model-2-avx512_bf16"
WIDE = {"isa": "avx512_bf16"}
TWO = [
    steps(machine=OLD, **WIDE),
    steps(step(gain=3.5), machine=NEW, cpu="Some CPU (model 2)", date="2026-11-18 00:00:00 UTC", **WIDE),
]


def block(name, files):
    """What stands between the marks."""
    text = render.rendered(f"<!-- begin: {name} -->\n<!-- end -->", files)
    assert figures.problems(text, files) == []
    return text


def test_two_machines_with_the_same_instructions_are_shown_by_name():
    text = block("steps", TWO)
    first, second = text.index("### Some CPU (model 2), AVX512-BF16"), text.index("### Some CPU, AVX512-BF16")
    assert first < text.index("**3.50x") < second < text.index("**2.50x")


def test_a_block_may_name_a_machine_by_its_folder():
    assert "**2.50x" in block(f"steps {OLD}", TWO)
    assert "**3.50x" in block(f"steps {NEW}", TWO)


def test_a_kind_of_cpu_stands_for_its_newest_results():
    assert "**3.50x" in block("steps avx512_bf16", TWO)


def test_recipes_have_a_column_for_each_machine():
    lines = block("recipes", [*TWO, steps(step("tiny"))]).splitlines()
    assert lines[2] == "| model | Some CPU (model 2), AVX512-BF16 | Some CPU, AVX512-BF16 | Some CPU, AVX2 only |"
    assert lines[4].startswith("| MLP, 50 M parameters, batch 128 | **3.50x** (no option was faster) | **2.50x**")
    assert "| tiny | not measured yet | not measured yet | **2.50x** (no option was faster) |" in lines


def test_kernels_of_each_machine_are_folded_with_empty_lines_around_the_table():
    lines = block("kernels", [kernels("glu", "rope")]).splitlines()
    start = lines.index("<details>")
    assert lines[start + 1] == "<summary>2 kernels in 2 cases, memory as it comes for both sides</summary>"
    assert lines[start + 2] == ""
    assert lines[start + 3].startswith("| kernel | case |")
    assert lines[lines.index("</details>") - 1] == ""
    assert "With heap kept for both sides nothing was taken yet." in lines


@pytest.mark.parametrize(
    "name",
    ["machines", "recipes", "compared", "roofline", "steps", "losses", "kernels", "profile", "speech_profile",
     "clip_profile", "trainer", "curves", "mechanisms", "thresholds", "processes", "averaging", "sharding", "links",
     "ahead", "local_updates"],
)  # fmt: skip
def test_without_results_a_block_says_that_nothing_was_measured(name):
    assert "Nothing was measured yet." in block(name, [])


def test_a_machine_without_results_of_a_suite_is_left_out_of_its_block():
    assert block("mechanisms", [steps(), mechanisms()]).count("###") == 1


def test_machines_tell_what_they_reach_and_where_it_comes_from():
    lines = block("machines", [rates(), steps()]).splitlines()
    assert lines[4] == (
        "| Some CPU, AVX2 only | 2 | 160 GFLOP/s [144..176] | 300 GFLOP/s [270..330] | 30.0 GB/s [27.0..33.0]"
        " | 20.0 GB/s [18.0..22.0] | 50.0 GB/s [45.0..55.0] | machine 2026-11-16, steps 2026-11-16 |"
    )
    assert "Rates are of: Some CPU, AVX2 only: suite machine." in lines


def test_without_suite_machine_the_peak_is_the_one_that_shares_are_of():
    found = roofs.of([steps()], "some-cpu-avx2")
    assert found.products["fp32"] == result_files.Spread(160.0, 160.0, 160.0)
    assert found.bandwidths == {}
    assert "| 160 GFLOP/s [160..160] | not measured yet |" in block("machines", [steps()])


def test_names_are_in_the_order_of_the_newest_results():
    assert machine_tables.names([*TWO, rates()]) == [NEW, OLD, "some-cpu-avx2"]

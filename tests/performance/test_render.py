import subprocess
import sys

import pytest
from benchmarks import figures, kernel_tables, render, result_files, tables

from .made_up import CONDITIONS, kernel, kernels, ratio, side, step, steps

DOCUMENT = "Before.\n\n<!-- begin: gain -->\nold\n<!-- end -->\n\nAfter.\n"


def test_only_what_stands_between_the_marks_is_replaced():
    text = render.rendered(DOCUMENT, [steps()])
    assert text.startswith("Before.\n\n<!-- begin: gain -->\n\n| model |")
    assert text.endswith("<!-- end -->\n\nAfter.\n")
    assert "old" not in text


def test_rendering_again_changes_nothing():
    files = [steps(), kernels("glu")]
    text = render.rendered(DOCUMENT + "<!-- begin: kernels avx2 -->\n<!-- end -->\n", files)
    assert render.rendered(text, files) == text


def test_an_unknown_block_is_refused():
    with pytest.raises(ValueError, match="expected the name of a block, got 'gains'; there are: gain, "):
        render.rendered("<!-- begin: gains -->\n<!-- end -->", [steps()])


def test_gain_says_where_nothing_was_measured():
    lines = tables.gain([steps(step(gain=2.5))])
    assert lines[0] == "| model | AVX2 only (Some CPU, fp32) |"
    assert lines[2] == "| MLP, 50 M parameters, batch 128 | **2.50x** (no option was faster) |"
    assert lines[3] == "| the same MLP, 8 micro-batches a step | not measured yet |"
    assert lines[-1] == (
        "Taken with 2 cores, torch 2.13.0: AVX2 only on 2026-11-16. On CPUs with AVX512-BF16 nothing was measured yet."
        " On CPUs with AMX nothing was measured yet."
    )


def test_a_side_that_died_is_told_instead_of_a_gain_over_it():
    best = "stock at its best (fused)"
    row = step() | {
        "sides": [side("fullstride auto", 100.0), side(best, 150.0)],
        "ratios": [ratio("stock at its best", best, 1.5, 1.4, 1.6)],
    }  # fmt: skip
    assert "| MLP, 50 M parameters, batch 128 | stock default died (1.50x) |" in tables.gain([steps(row)])
    (line,) = [line for line in tables.steps([steps(row)], "avx2") if line.startswith("| MLP")]
    assert "| died | 150 ms [150..150] (fused) | died | 1.50x [1.40..1.60] |" in line


def test_gain_shows_three_kinds_of_cpu_once_all_were_measured():
    files = [steps(machine=f"some-cpu-{isa}") for isa in ("amx", "avx2", "avx512_bf16")]
    lines = tables.gain(files)
    kinds = (f"{kind} (Some CPU, fp32)" for kind in ("AVX512-BF16", "AVX2 only", "AMX"))
    assert lines[0] == f"| model | {' | '.join(kinds)} |"
    assert "nothing was measured yet" not in lines[-1]


def test_gain_tells_cores_and_versions_by_kind_where_they_differ():
    files = [steps(), steps(machine="some-cpu-amx", usable_cores=8, torch="2.14.0", date="2026-12-01 00:00:00 UTC")]
    assert tables.gain(files)[-1].startswith(
        "Taken: AVX2 only on 2026-11-16 with 2 cores, torch 2.13.0; AMX on 2026-12-01 with 8 cores, torch 2.14.0."
    )


def test_gain_without_any_result_is_a_sentence_for_each_kind():
    assert tables.gain([kernels("glu")]) == [
        "On CPUs with AVX512-BF16 nothing was measured yet.",
        "On CPUs with AVX2 only nothing was measured yet.",
        "On CPUs with AMX nothing was measured yet.",
    ]


def test_the_newest_take_of_a_row_is_shown_and_the_older_one_told_below():
    old = steps(step(gain=2.5))
    new = steps(step(gain=3.5), commit="abcdefabcdef", date="2026-11-17 01:00:00 UTC")
    both = result_files.File(old.machine, old.suite, [*new.parts, *old.parts])
    lines = tables.steps([both], "avx2")
    assert "**3.50x [1.85..2.60]**" in lines[2]
    assert lines[-1].startswith("An older take of MLP, 50 M parameters, batch 128: 2.50x [1.85..2.60] over default")


def test_times_are_medians_with_the_lowest_and_the_highest_round():
    [line] = [line for line in tables.steps([steps()], "avx2") if line.startswith("| MLP")]
    assert "| 101 ms [100..130] | 250 ms [240..260] | as it comes |" in line
    assert "| 1267 samples/s [985..1280] | 50 % fp32, 80 GFLOP/s |" in line


def test_a_spread_that_nobody_recorded_is_left_out():
    file = kernels("glu")
    file.parts[0]["results"][0]["peers"][0]["ratio"] = {"median": 2.0, "lowest": None, "highest": None}
    assert "| torch 2.00x |" in kernel_tables.kernels([file], "kernels", "avx2")[-1]


def test_an_op_that_is_gone_is_left_out(tmp_path):
    source = tmp_path / "csrc" / "kernels" / "glu.cc"
    source.parent.mkdir(parents=True)
    source.touch()
    lines = kernel_tables.kernels([kernels("glu", "quantize")], "kernels", "avx2", tmp_path)
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| glu"]


def test_kernels_show_rates_in_everyday_units_where_they_were_counted():
    share = {"median": 0.25, "lowest": 0.2, "highest": 0.3}
    rows = [
        kernel("gemm", gflops=120.0, share_of_peak=0.8, precision="fp32", left_out={"portable": "takes long"}),
        kernel("adam", "AdamW, 49.8 M parameters"),
        kernel("sgd", parameters_per_second=2.5e9),
        kernel("glu", gigabytes_per_second=12.5, share_of_bandwidth=share, mix="write"),
        kernel("rope", gigabytes_per_second=12.5),
    ]
    lines = kernel_tables.kernels([kernels(*rows)], "kernels", "avx2")[2:]
    assert "[1.50..2.25]; portable: left out, takes long | 120 GFLOP/s, 80 % of the fp32 peak |" in lines[0]
    assert "| 24.90 G parameters/s |" in lines[1]
    assert "| 2.50 G parameters/s |" in lines[2]
    assert "|  | 12.5 GB/s, 25 % of write |" in lines[3]
    assert "|  | 12.5 GB/s |" in lines[4]
    text = render.rendered("<!-- begin: kernels -->\n<!-- end -->", [kernels(*rows)])
    assert figures.problems(text, [kernels(*rows)]) == []


def test_recipes_are_shown_as_compare_measured_them():
    def measured(name, lowest, median, highest):
        times = {"median": median, "lowest": lowest, "highest": highest, "rounds": [highest, lowest, median]}
        speed = {"median": 1e5 / median, "lowest": 1e5 / highest, "highest": 1e5 / lowest}
        return side(name) | {"milliseconds": times, "throughput": speed}

    found = {
        "conditions": CONDITIONS, "recipe": "mlp-mnist", "turns": {"rounds": 3, "steps": 2}, "unit": "samples",
        "sides": [measured("fullstride auto", 90.0, 100.0, 125.0), measured("stock default", 240.0, 250.0, 260.0)],
        "ratios": [ratio("stock default", "stock default", 2.5, 2.4, 2.6)],
    }  # fmt: skip
    files = [result_files.File("some-cpu-avx2", "recipes", [result_files.part("fullstride compare mlp-mnist", found)])]
    text = render.rendered("<!-- begin: compared -->\n<!-- end -->", files)
    assert (
        "| mlp-mnist, 3 rounds | 100 ms [90..125] fp32 | 250 ms [240..260] | **2.50x [2.40..2.60]**"
        " | 1000 samples/s [800..1111] | 100 / 100 MiB |"
    ) in text
    assert figures.problems(text, files) == []


def test_main_writes_documents_and_the_index_and_names_stale_results(repository, capsys):
    commit = repository.commit(**{"csrc/kernels/glu.cc": "1", "csrc/kernels/rope.cc": "1", "README.md": DOCUMENT})
    result_files.write(steps(commit=commit), repository.root)
    result_files.write(kernels("glu", "rope", commit=commit), repository.root)
    repository.commit(**{"csrc/kernels/glu.cc": "2"})
    render.main(repository.root)
    told = capsys.readouterr().out
    assert "written: README.md" in told
    assert "some-cpu-avx2 steps, mlp: stale: 1 commit since in csrc/kernels" in told
    assert "some-cpu-avx2 kernels, glu: stale: 1 commit since in csrc/kernels/glu.cc" in told
    assert "kernels, rope" not in told
    index = (repository.root / render.INDEX).read_text()
    taken = f"{commit[:7]} | 2026-11-16 | 0.5 | 2.13.0+cpu"
    assert f"| `fullstride bench kernels` | {taken} | no: rope; stale: glu |" in index
    render.main(repository.root)
    assert "as it was: README.md" in capsys.readouterr().out


def test_rendering_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import benchmarks.render as r; print(len(r.blocks([])))"
    done = subprocess.run([sys.executable, "-c", code], cwd=result_files.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_no_result_is_named(tmp_path):
    path = result_files.write(steps(), tmp_path)
    path.write_text('{"suite": "kernels", "parts": []}')
    with pytest.raises(ValueError, match=r"some-cpu-avx2/steps.json: expected suite 'steps' with a list of parts"):
        result_files.load_all(tmp_path)


def test_results_of_a_tree_with_changes_are_refused(tmp_path):
    result_files.write(kernels("glu", commit="0123456789ab-changed"), tmp_path)
    expected = "expected results of a commit, got 'fullstride bench kernels' of a tree with changes; take it anew"
    with pytest.raises(ValueError, match=f"some-cpu-avx2/kernels.json: {expected}"):
        result_files.load_all(tmp_path)
    with pytest.raises(SystemExit, match=f"render: .*{expected}"):
        render.main(tmp_path)


def test_what_is_written_is_read_back(tmp_path):
    file = steps(step(), commit="x", heap="odd [\n text {]")
    result_files.write(file, tmp_path)
    assert result_files.load_all(tmp_path) == [file]

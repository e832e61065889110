"""The guard, with real measurements of one kernel and a tiny step. How fast they are is for it to tell."""

import importlib
import json
import signal
import subprocess
import sys

import pytest
from benchmarks import check, result_files, take
from benchmarks.check_ratios import Key
from benchmarks.step_rows import STOCK_DEFAULT

from fullstride.bench import conditions
from fullstride.bench.step.cases import Case

from .made_up import kernel, kernels, step, steps

OP = "grads"  # the quickest to measure


@pytest.fixture(scope="module", autouse=True)
def _as_it_comes():
    with pytest.MonkeyPatch.context() as patch:
        for name in take._CHANGES_WHAT_RUNS:
            patch.delenv(name, raising=False)
        patch.setenv("OMP_WAIT_POLICY", "passive")
        yield


def committed(root, *cases, **changes):
    """Made-up results of this machine: (case, ratio) of the op."""
    facts = conditions.conditions() | {"commit": "0123456789ab"} | changes
    rows = []
    for case, ratio in cases:
        spread = {"median": ratio, "lowest": 0.9 * ratio, "highest": 1.1 * ratio}
        rows.append(kernel(OP, case, peers=[{"name": "torch", "milliseconds": 1.0, "ratio": spread}]))
    for suite in ("kernels", "kernels_heap_kept"):
        file = kernels(*rows, machine=result_files.machine_of(facts), suite=suite, **facts)
        result_files.write(file, root)


@pytest.fixture(scope="module")
def cases():
    rows = importlib.import_module(f"fullstride.bench.kernels.rows.{OP}").rows()
    return [row.case for row in rows]


def run(root, *arguments):
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        check.main(arguments, root)
    return ended.value.code


@pytest.fixture(scope="module")
def found(tmp_path_factory, cases):
    """(exit code, what was printed, what is kept) where one case was committed as faster than it can be."""
    root = tmp_path_factory.mktemp("check")
    committed(root, (cases[0], 1e6), (cases[1], 1e-6), ("of long ago", 2.0))
    machine = result_files.machine_of(conditions.conditions())
    (root / result_files.FOLDER / machine / "kernels.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *texts, **_: lines.append(" ".join(map(str, texts))))
        code = run(root, "--only", OP, "--rounds", "1")
    kept = json.loads((root / check.FOLDER / "study.json").read_text())
    return code, "\n".join(lines), kept


def test_a_ratio_that_fell_ends_it_with_1(found, cases):
    code, text, kept = found
    assert code == 1
    assert kept["outcome"]["fell"] == [f"{OP} {cases[0]} against torch, heap kept"]
    assert "fell by more than 10% beyond their spread, 1 of 2:" in text


def test_what_seems_to_have_fallen_is_measured_once_more_with_more_rounds(found):
    assert list(found[2]["parts"]) == [f"kernels_heap_kept {OP}", f"again: kernels_heap_kept {OP}"]


def test_rows_of_one_side_alone_are_told(found, cases):
    text = found[1]
    assert f"{OP} of long ago against torch, heap kept: committed 2.00x [1.80..2.20], not measured now" in text
    assert f"{OP} {cases[-1]} against torch, heap kept: now " in text
    assert "not committed yet" in text


def test_a_check_that_was_stopped_goes_on(tmp_path, cases):
    committed(tmp_path, (cases[0], 1e-6))
    # Somebody may edit the tree meanwhile, which is of no matter here.
    code = """if True:
        import pathlib, sys
        from benchmarks import check
        check._digest = lambda: "the same"
        check.main(sys.argv[2:], pathlib.Path(sys.argv[1]))
    """
    command = [sys.executable, "-c", code, str(tmp_path), "--only", OP, "--rounds", "1"]
    first = subprocess.Popen(command, cwd=result_files.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stdout
    for line in first.stdout:
        if line.startswith("[1/2]"):
            break
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1].startswith("bench-check: stopped by SIGTERM; 1 parts are kept in ")
    second = subprocess.run(command, cwd=result_files.ROOT, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "1 of 2 parts were done before: going on" in second.stdout
    assert "nothing fell by more than 10% beyond its spread: 2 ratios were compared" in second.stdout


def test_a_step_is_measured_against_stock_default_alone(monkeypatch):
    monkeypatch.setattr(check, "CASES", (Case("tiny"),))
    monkeypatch.setattr(check, "_MOST_STEPS", 3)
    found = check._step("tiny", rounds=2)
    [(key, spread)] = found.items()
    assert key == Key("steps", "tiny", "", STOCK_DEFAULT)
    assert spread.lowest is not None
    assert spread.highest is not None
    assert 0 < spread.lowest <= spread.median <= spread.highest


@pytest.mark.parametrize(("broken", "code"), [("fullstride auto", 1), ("stock default", 0)])
def test_a_side_of_ours_that_fails_ends_it_with_1_and_one_of_stock_is_a_note(
    broken, code, tmp_path, monkeypatch, capsys
):
    class Broken(Case):
        def config(self, **wishes):
            ours = "fullstride" in wishes
            return super().config(**wishes) | ({"model": "none"} if ours == (broken == "fullstride auto") else {})

    monkeypatch.setattr(check, "CASES", (Broken("tiny"),))
    facts = conditions.conditions() | {"commit": "0123456789ab"}
    result_files.write(steps(step("tiny"), machine=result_files.machine_of(facts), **facts), tmp_path)
    assert run(tmp_path, "--only", "tiny", "--rounds", "1") == code
    text = capsys.readouterr().out
    assert f"steps tiny: {broken}: " in text
    assert ("\nFAILED: steps tiny: " in text) == (code == 1)
    kept = json.loads((tmp_path / check.FOLDER / "study.json").read_text())
    assert len(kept["outcome"]["failed"]) == code


def test_without_results_of_this_cpu_it_is_one_line(tmp_path, capsys):
    result_files.write(steps(), tmp_path)
    assert run(tmp_path) == 0
    [line] = capsys.readouterr().out.splitlines()
    machine = result_files.machine_of(conditions.conditions())
    assert line == f"bench-check: no results of this kind of CPU, {machine}, to compare with; `make bench` takes them"


def test_results_of_another_number_of_cores_are_none(tmp_path, capsys, cases):
    committed(tmp_path, (cases[0], 1.0), usable_cores=1000)
    assert run(tmp_path) == 0
    assert "(committed with 1000 cores, here are " in capsys.readouterr().out


def test_an_unknown_name_is_one_line(tmp_path, capsys, cases):
    committed(tmp_path, (cases[0], 1.0))
    assert run(tmp_path, "--only", "grad") == 2
    assert capsys.readouterr().err == (
        f"bench-check: --only: expected names with committed results, got 'grad'; there are: {OP}\n"
    )


def test_a_chosen_variant_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_ISA", "avx2")
    assert run(tmp_path) == 2
    assert "expected Fullstride as it comes, got FULLSTRIDE_ISA set" in capsys.readouterr().err


def test_a_stopped_check_of_other_code_is_not_gone_on_with(tmp_path, capsys, monkeypatch):
    facts = conditions.conditions()
    monkeypatch.setattr(check, "_digest", lambda: "before")
    with check._opened(tmp_path, ["x"], 3, facts, anew=False) as opened:
        opened.record("kernels x", {"ratios": []})
    with check._opened(tmp_path, ["x"], 3, facts, anew=False) as opened:
        assert list(opened.parts) == ["kernels x"]
    monkeypatch.setattr(check, "_digest", lambda: "after")
    with check._opened(tmp_path, ["x"], 3, facts, anew=False) as opened:
        assert opened.parts == {}
    assert "beginning again" in capsys.readouterr().out


@pytest.mark.parametrize("is_done", [True, False])
def test_a_check_that_is_done_or_not_wanted_begins_again(tmp_path, is_done):
    facts = conditions.conditions()
    with check._opened(tmp_path, [], 3, facts, anew=False) as opened:
        opened.record("kernels x", {"ratios": []})
        if is_done:
            opened.finish({"fell": []})
    with check._opened(tmp_path, [], 3, facts, anew=not is_done) as opened:
        assert opened.parts == {}

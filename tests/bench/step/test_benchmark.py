"""The benchmark of a training step, through the processes it uses, with a model of 212 parameters."""

import json
import re
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

from fullstride.bench.measure import Spread, Timing
from fullstride.bench.step import benchmark as step
from fullstride.bench.step import cases as step_cases
from fullstride.bench.step import stock as step_stock
from fullstride.bench.step import table as step_table
from fullstride.bench.step.cases import CASES, STOCK_BEST, STOCK_BF16, STOCK_DEFAULT, Case
from fullstride.bench.step.process import SideDied, SideLate
from fullstride.bench.step.results import Measured, Memory, Ratio, Result

from ...patience import PATIENCE
from .scripted import Mortal, Scripted


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """`fullstride bench step` on the tiny model: what it printed, and its JSON."""
    file = tmp_path_factory.mktemp("bench") / "step.json"
    arguments = ["bench", "step", "--model", "tiny", "--accumulate", "2", "--rounds", "2", "--quick", "--profile"]
    done = run(*arguments, "--precision", "fp32", "--json", str(file))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "fullstride", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def measured(name, milliseconds, faults=0.0, peak_mib=100, losses=(2.0, 1.0)):
    facts = {"unit": "tokens", "units": 8, "parameters": 10_000_000, "dropout": False}
    seconds = tuple(x / 1e3 for x in milliseconds)
    return Measured(name, "fp32", Timing(seconds), 8.0, faults, peak_mib << 20, 1.0, 0.5, list(losses), facts)


def result(ratio=2.0, target=3.0, **ours):
    sides = [measured("fullstride auto", [1.0, 2.0], **ours), measured(STOCK_DEFAULT, [3.0, 4.0], peak_mib=200)]
    spread = Spread(ratio, ratio - 1, ratio + 1)
    case = Case("mlp", 1, targets={"auto": {STOCK_DEFAULT: target}})
    ratios = [Ratio("fullstride auto", STOCK_DEFAULT, STOCK_DEFAULT, spread, target)]
    return Result(case, sides, ratios, ["fused: 3 ms"], 2, {"fullstride auto": 0.25})


def test_the_command_shows_every_side(command):
    text, content = command
    assert re.search(r"^cpu +\S", text, re.MULTILINE)
    assert re.search(r"^tiny, accumulation 2: 212 parameters, 8 samples a step$", text, re.MULTILINE)
    assert re.search(r"^  fullstride fp32: \d+\.\d\dx \[.*\] stock default$", text, re.MULTILINE)
    assert "torch.compile: left out by --quick" in text
    [entry] = content["results"]
    assert [side["name"] for side in entry["sides"]][:2] == ["fullstride fp32", STOCK_DEFAULT]
    assert {ratio["peer"] for ratio in entry["ratios"]} == {STOCK_DEFAULT, STOCK_BEST}
    assert len(entry["trials"]) == 8
    assert all(len(side["milliseconds"]) == 2 for side in entry["sides"])
    assert content["missed"] == []


def test_every_side_is_held_to_the_same_counted_flops(command):
    for side in command[1]["results"][0]["sides"]:
        gflop = side["facts"]["gflop"]
        assert gflop == 2 * 3584 / 1e9  # of two micro-batches: see test_flops.py
        assert side["gflops"] == pytest.approx(gflop / statistics.median(side["milliseconds"]) * 1e3)
        assert side["share_of_peak"] > 0


def test_the_sides_train_alike(command):
    [entry] = command[1]["results"]
    ours, default = (side["losses"][: entry["num_losses"]] for side in entry["sides"][:2])
    assert len(ours) >= 5
    assert ours == pytest.approx(default, rel=1e-5)  # fp32, and the order of sums


def test_a_case_is_a_readable_table():
    first, head, ours, stock, ratio, losses = step_table.lines(result())
    assert first == "mlp, accumulation 1: 10,000,000 parameters, 8 tokens a step"
    assert re.search(r"ms a step +tokens/s +faults +peak MiB +GFLOP/s +of peak +loss$", head)
    assert re.search(r"fullstride auto \(fp32\) +1.5 \[1..2\] +8 +0 +100 +1.0 +50% fp32 +1.5000$", ours)
    assert stock.startswith("  stock default ")
    assert ratio == "  fullstride auto: 2.00x [1.00..3.00] stock default  target 3x MISSED"
    assert losses == "  losses of the same 2 steps, largest difference to stock default: fullstride auto 2.5e-01"


def test_the_profile_shares_add_up(command):
    text, content = command
    for side in content["results"][0]["sides"]:
        assert sum(share for _, share in side["profile"]["phases"]) == pytest.approx(1.0)
        assert 0 < sum(share for *_, share in side["profile"]["ops"]) <= 1.01
    assert re.search(r"fullstride fp32, \d+ ms a step under the profiler: .*forward \d+\.\d%", text)


def test_only_ours_is_prepared(command):
    ours, default = command[1]["results"][0]["sides"][:2]
    assert ours["facts"]["explanation"]
    assert ours["facts"]["fullstride_loaded"]
    assert default["facts"]["explanation"] == []
    assert not default["facts"]["fullstride_loaded"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "resnet"], r"fullstride: no model 'resnet'; there are: mlp, llama, bert, fastspeech2, clip$"),
        (["--precision", "int8"], r"expected one of .*, got 'int8'"),
        (["--accumulate", "0"], r"expected a whole number from 1 on, got '0'"),
        (["--json", "missing/step.json"], r"fullstride: cannot write missing/step.json: No such file"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    done = run("bench", "step", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(message, done.stderr.strip().splitlines()[-1])


def test_targets_are_those_of_the_cases():
    assert step_cases.choose([], None, []) == list(CASES)
    [first, second] = step_cases.choose(["mlp"], None, ["fp32"])
    assert (first.accumulate, second.accumulate, first.precisions) == (1, 8, ("fp32",))
    assert first.targets == CASES[0].targets
    assert step_cases.choose(["mlp"], 3, []) == [Case("mlp", 3)]  # nothing is expected of it
    assert [case.batch for case in step_cases.choose(["llama"], None, [])] == ["4 x 256", "1 x 1024"]
    assert step_cases.choose(["llama"], 2, []) == [Case("llama", 2, batch=batch) for batch in ("4 x 256", "1 x 1024")]


def test_auto_is_held_to_the_targets_of_fp32_where_that_was_chosen():
    bf16, fp32 = {STOCK_DEFAULT: 2.5}, {STOCK_DEFAULT: 1.5}
    case = Case("mlp", targets={"auto": bf16, "fp32": fp32})
    assert case.targets_of("auto", "bf16") == bf16
    assert case.targets_of("auto", "fp32") == case.targets_of("fp32", "fp32") == fp32
    assert Case("mlp", targets={"auto": bf16}).targets_of("auto", "fp32") == bf16
    assert case.targets_of("bf16", "bf16") == {}


def test_a_process_of_stock_in_bf16_shows_its_memory(command):
    text, content = command
    memory = content["results"][0]["memory"]
    assert memory["num_steps"] == 2
    assert list(memory["peaks"])[:2] == ["fullstride fp32", STOCK_DEFAULT]
    assert memory["peaks"][STOCK_BF16] > 50 << 20
    assert re.search(r"\n  held at most after 2 steps: fullstride fp32 \d+ MiB, .* autocast bf16 \d+", text)


def test_what_was_missed_is_named():
    assert step_table.missed([result(3.0)]) == []
    assert step_table.missed([result(2.0, faults=1000, peak_mib=300)]) == [
        "mlp, accumulation 1: fullstride auto: 2.00x [1.00..3.00] stock default  target 3x MISSED",
        "mlp, accumulation 1: fullstride auto: 1000 page faults a step, target below 1000",
        "mlp, accumulation 1: fullstride auto: 300 MiB at most, target below stock default's 200",
    ]


def test_memory_above_that_of_stock_in_bf16_is_named():
    same, more = ({"fullstride auto": mib << 20, STOCK_BF16: 2 << 20} for mib in (2, 3))
    assert step_table.missed([replace(result(3.0), memory=Memory(3, same))]) == []
    assert step_table.missed([replace(result(3.0), memory=Memory(3, more))]) == [
        "mlp, accumulation 1: held at most after 3 steps: fullstride auto 3 MiB, stock autocast bf16 2 MiB"
        "  target at most stock autocast bf16's MISSED"
    ]


def test_stock_that_cannot_do_bf16_misses_no_target():
    memory = Memory(3, {"fullstride auto": 3 << 20}, "stock autocast bf16: no answer within 1200 s")
    found = replace(result(3.0), memory=memory)
    assert step_table.missed([found]) == []
    assert step_table.lines(found)[-1].endswith("fullstride auto 3 MiB; stock autocast bf16: no answer within 1200 s")


def test_json_holds_numbers_only_even_where_a_loss_is_not_finite():
    content = json.dumps(step_table.as_json({"cpu": "x"}, [result(losses=(float("nan"), 1.0))]), allow_nan=False)
    [entry] = json.loads(content)["results"]
    assert entry["sides"][0]["losses"] == [None, 1.0]
    assert entry["ratios"][0] | {"ratio": None} == {
        "ours": "fullstride auto", "peer": STOCK_DEFAULT, "peer_side": STOCK_DEFAULT, "ratio": None, "target": 3.0,
        "met": False,
    }  # fmt: skip


def measure(monkeypatch, **seconds):
    names = {"ours": "fullstride auto", "ours_bf16": "fullstride bf16", "default": STOCK_DEFAULT}
    Scripted.seconds = {f"{STOCK_BEST} (fused)": 0.8, f"{STOCK_BEST} (autocast bf16)": SideDied("x: illegal")}
    Scripted.seconds |= {names[key]: value for key, value in seconds.items()}
    Scripted.open = []
    monkeypatch.setattr(step_stock, "Side", Mortal)
    monkeypatch.setattr(step, "Side", Mortal)
    case = Case("tiny", precisions=("auto", "bf16"), targets={"auto": {STOCK_DEFAULT: 1.5}})
    return step.measure(case, 2, quick=True, profile=False, peaks={}, say=str)


def test_the_rest_goes_on_when_stock_dies(monkeypatch):
    died = SideDied("stock default: illegal instruction on this CPU")
    found = measure(monkeypatch, ours=0.5, ours_bf16=0.25, default=died)
    assert [side.name for side in found.sides] == ["fullstride auto", "fullstride bf16", f"{STOCK_BEST} (fused)"]
    assert found.failed == {STOCK_DEFAULT: "illegal instruction on this CPU"}
    assert {(ratio.ours, ratio.peer) for ratio in found.ratios} == {
        ("fullstride auto", STOCK_BEST), ("fullstride bf16", STOCK_BEST),
    }  # fmt: skip
    text = step_table.lines(found)
    assert any(re.search(r"^  stock default +illegal instruction on this CPU$", line) for line in text)
    assert step_table.missed([found]) == []
    assert step_table.as_json({}, [found])["results"][0]["failed"] == found.failed


def test_a_default_that_hangs_in_its_trial_is_ended_and_left_out(monkeypatch):
    run = Mortal.run

    def hang(self, steps, limit=None):
        if self.name == STOCK_DEFAULT and limit is not None:
            raise SideLate(f"{STOCK_DEFAULT}: no answer within {limit:.0f} s")
        return run(self, steps, limit)

    monkeypatch.setattr(Mortal, "run", hang)
    found = measure(monkeypatch, ours=0.5, ours_bf16=0.25, default=1.0)
    assert found.failed == {STOCK_DEFAULT: "no answer within 300 s"}
    assert [side.name for side in found.sides] == ["fullstride auto", "fullstride bf16", f"{STOCK_BEST} (fused)"]
    assert STOCK_DEFAULT not in Scripted.open


def test_the_rest_goes_on_when_one_of_ours_dies(monkeypatch):
    found = measure(monkeypatch, ours=0.5, ours_bf16=SideDied("fullstride bf16: segmentation fault"), default=1.0)
    assert found.failed == {"fullstride bf16": "segmentation fault"}
    assert [ratio.ratio.median for ratio in found.ratios if ratio.peer == STOCK_DEFAULT] == [2.0]
    assert "tiny, accumulation 1: fullstride bf16: segmentation fault" in step_table.missed([found])


def test_long_steps_are_shown_without_an_exponent():
    sides = [measured(STOCK_DEFAULT, [24390.4, 24390.4])]
    lines = step_table.lines(Result(Case("mlp"), sides, [], [], 2, {}))
    assert "24390 [24390..24390]" in lines[2]

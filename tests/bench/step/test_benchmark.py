"""The benchmark of a training step, through the processes it uses, with a model of 212 parameters."""

import contextlib
import inspect
import json
import mmap
import os
import re
import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fullstride.bench.measure import Spread, Timing
from fullstride.bench.step import benchmark as step
from fullstride.bench.step import cases as step_cases
from fullstride.bench.step import process as step_process
from fullstride.bench.step import side as step_side
from fullstride.bench.step import stock as step_stock
from fullstride.bench.step import table as step_table
from fullstride.bench.step.cases import CASES, STOCK_BEST, STOCK_BF16, STOCK_DEFAULT, Case
from fullstride.bench.step.models import FASTSPEECH2, IGNORED, WORKLOADS
from fullstride.bench.step.process import Side, SideDied, SideFailed, SideLate
from fullstride.bench.step.results import Measured, Memory, Ratio, Result
from fullstride.models import fastspeech2, llama
from fullstride.recipes.fastspeech2 import Model as SpeechShape

from ...patience import PATIENCE

TINY = Case("tiny")


@pytest.fixture(scope="module")
def stock():
    """One process of stock PyTorch, started where our settings and the user's are in the environment."""
    ours = {"FULLSTRIDE_HEAP": "1", "FULLSTRIDE_QUIET": "1", "MALLOC_TOP_PAD_": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ours.items():
            patch.setenv(name, value)
        side = Side(STOCK_DEFAULT, TINY.config())
    yield side
    side.close()


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


def test_the_stock_process_has_no_trace_of_ours(stock):
    assert stock.facts["fullstride_loaded"] is False
    assert [name for name in stock.facts["environment"] if name.startswith("FULLSTRIDE")] == []
    assert stock.facts["environment"]["MALLOC_TOP_PAD_"] == "1"  # the user's


def test_a_turn_gives_one_time_and_one_loss_a_step(stock):
    before, faults = len(stock.losses), faults_of(stock.pid)
    answer = stock.run(3)
    assert len(answer["seconds"]) == len(answer["losses"]) == 3
    assert all(seconds > 0 for seconds in answer["seconds"])
    assert stock.losses[before:] == answer["losses"]
    assert answer["faults"] <= faults_of(stock.pid) - faults
    assert stock.peaks[before:] == answer["peaks"] == sorted(answer["peaks"])
    assert len(answer["peaks"]) == 3
    assert answer["peaks"][0] > 50 << 20  # torch alone is more


def faults_of(pid):
    """Page faults of a process so far that needed no disk, as the system counts them."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def test_faults_are_those_between_the_first_step_and_the_last(monkeypatch):
    training = step_side.Training(TINY.config())
    data, step = training.data, training.step
    counted = [1000]  # by the system so far

    def data_that_faults(steps):
        counted[0] += 500
        return data(steps)

    def step_that_faults(*arguments):
        counted[0] += 7
        return step(*arguments)

    monkeypatch.setattr(training, "data", data_that_faults)
    monkeypatch.setattr(training, "step", step_that_faults)
    monkeypatch.setattr(step_side, "page_faults", lambda: counted[0])
    assert training.run(3)["faults"] == 21


def test_page_faults_are_counted_by_the_page():
    pages = 64
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    before = step_side.page_faults()
    memory[:] = bytes(len(memory))
    assert pages <= step_side.page_faults() - before < 100 * pages


def test_a_resting_process_has_no_running_thread(stock):
    stock.run(1)
    stock.rest()
    assert not step_process._runs(stock.pid)
    assert step_process._runs(os.getpid())


def test_a_process_that_was_killed_is_one_clear_line():
    side = Side("stock default", TINY.config())
    os.kill(side.pid, signal.SIGKILL)
    with pytest.raises(SideFailed, match=r"^stock default: its process ended, killed by signal 9$"):
        side.run(1)
    side.close()


def test_an_illegal_instruction_is_called_by_its_name():
    side = Side("stock autocast bf16", TINY.config())
    os.kill(side.pid, signal.SIGILL)
    with pytest.raises(SideDied, match=r"^stock autocast bf16: illegal instruction on this CPU$"):
        side.run(1)
    side.close()


def test_stock_runs_without_our_cap_on_onednn_and_with_the_user_s(monkeypatch):
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    monkeypatch.setenv("FULLSTRIDE_ONEDNN_CAP", "AVX512_CORE_BF16")  # as onednn.cap() leaves it
    assert "ONEDNN_MAX_CPU_ISA" not in step_process.stock_environment()
    assert step_process.our_environment()["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    monkeypatch.delenv("FULLSTRIDE_ONEDNN_CAP")
    assert step_process.stock_environment()["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"


def test_an_error_in_a_process_is_one_clear_line():
    with pytest.raises(SideFailed, match=r"^ours: KeyError: 'no such model'$"):
        Side("ours", {"model": "no such model", "accumulate": 1})


def test_a_process_that_does_not_answer_in_time_is_late():
    with pytest.raises(SideLate, match=r"^stock: no answer within 0 s$"):
        Side("stock", TINY.config(), limit=0.0)


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


def test_every_case_is_a_workload():
    others = {*step_cases.TEST_MODELS, *step_cases.OTHER_MODELS}
    assert {case.config()["model"] for case in CASES} == WORKLOADS.keys() - others


def test_the_llama_is_the_one_of_the_recipe():
    model = WORKLOADS["tiny-llama"].build()
    assert Path(inspect.getfile(type(model))).samefile(llama.__file__)
    tokens, targets = WORKLOADS["tiny-llama"].batch(torch.Generator().manual_seed(0))
    expected = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    assert torch.equal(WORKLOADS["tiny-llama"].loss(model, tokens, targets), expected)


def test_fastspeech2_is_the_one_of_the_recipe():
    model = WORKLOADS["tiny-speech"].build()
    assert Path(inspect.getfile(type(model))).samefile(fastspeech2.__file__)
    shape = SpeechShape().shape()
    assert {name: shape[name] for name in FASTSPEECH2 if name != "phonemes"} | {"phonemes": 50} == FASTSPEECH2


def test_sentences_of_a_batch_fill_one_shape_but_for_a_few_percent_of_padding():
    workload = WORKLOADS["fastspeech2"]
    phonemes, _, durations, pitch, energy, mel = workload.batch(torch.Generator().manual_seed(3))
    assert (phonemes.shape, mel.shape) == ((16, 40), (16, 260, 80))
    assert durations.sum() == workload.num_units
    assert 0.04 < 1 - workload.num_units / (16 * 260) < 0.05
    assert durations.sum(1).max() == 260
    assert not torch.equal(durations.sum(1).sort().values, durations.sum(1))  # in no order
    for values in (durations, pitch, energy):
        assert not values[phonemes == 0].any()
    assert (durations >= 0).all()


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


class Scripted:
    """Stands for a process whose steps take the seconds of its settings, or which fails as they say."""

    seconds: dict[str, float | Exception]
    open: list[str]

    def __init__(self, name, config, limit=None):
        self.name = name
        self.facts: dict[str, Any] = {"gflop": 1.0}
        self.cost = self.seconds[name]
        self.open.append(name)
        self.limits = [limit]  # of each answer

    def run(self, steps, limit=None):
        self.limits.append(limit)
        if isinstance(self.cost, Exception):
            raise self.cost
        return {"seconds": [self.cost] * steps}

    def rest(self):
        pass

    def close(self):
        if self.name in self.open:
            self.open.remove(self.name)


def best_of(monkeypatch, quick=False, default=1.0, **seconds):
    """find_best() where the steps take these seconds; underscores stand for " + ", as "bf16_fused"."""
    words = {"bf16": "autocast bf16", "compile": "torch.compile"}
    names = {key: " + ".join(words.get(word, word) for word in key.split("_")) for key in seconds}
    Scripted.seconds = {f"{STOCK_BEST} ({names[key]})": value for key, value in seconds.items()}
    Scripted.seconds[STOCK_DEFAULT] = default
    Scripted.open = []
    monkeypatch.setattr(step_stock, "Side", Scripted)
    with contextlib.ExitStack() as stack:
        side = Scripted(STOCK_DEFAULT, {})
        stack.callback(side.close)
        best, outcomes = step_stock.find_best(TINY, side, quick, stack, lambda line: None)
        assert set(Scripted.open) == {best.name} | ({STOCK_DEFAULT} if isinstance(default, float) else set())
    return best.name, dict(outcome.split(": ", 1) for outcome in outcomes)


def test_the_fastest_combination_is_stock_at_its_best(monkeypatch):
    name, outcomes = best_of(
        monkeypatch, fused=0.8, bf16=0.7, bf16_fused=0.5, compile=0.9, fused_compile=0.6, bf16_compile=0.4,
        bf16_fused_compile=0.3,
    )  # fmt: skip
    assert name == f"{STOCK_BEST} (autocast bf16 + fused + torch.compile)"
    assert outcomes["fused"] == "800 ms"
    assert len(outcomes) == 8


def test_every_answer_of_a_trial_has_a_limit(monkeypatch):
    limits: dict[str, list[float | None]] = {}
    close = Scripted.close

    def note(self):
        limits[self.name] = self.limits
        close(self)

    monkeypatch.setattr(Scripted, "close", note)
    best_of(
        monkeypatch, fused=0.8, bf16=0.7, bf16_fused=2.0, compile=0.9, fused_compile=0.6, bf16_compile=0.4,
        bf16_fused_compile=0.3,
    )  # fmt: skip
    assert len(limits) == 8
    assert limits.pop(STOCK_DEFAULT)[1:] == [300.0, *[20.0] * 4]  # 20 times its first step
    for name, given in limits.items():
        assert set(given[1:]) == ({900.0} if "compile" in name else {20.0})
        assert given[0] == 900.0


def test_slow_and_failed_combinations_are_told(monkeypatch):
    failed = SideFailed("stock (torch.compile): RuntimeError: no C++ compiler")
    name, outcomes = best_of(monkeypatch, fused=0.8, bf16=9.0, compile=failed, fused_compile=failed)
    assert name == f"{STOCK_BEST} (fused)"
    assert outcomes["torch.compile"] == "RuntimeError: no C++ compiler"
    assert outcomes["autocast bf16 + fused"] == "not tried: bf16 is too slow here"


def test_bf16_that_dies_is_told_and_tried_once(monkeypatch):
    died = SideDied("stock (autocast bf16): illegal instruction on this CPU")
    name, outcomes = best_of(monkeypatch, fused=0.8, bf16=died, compile=0.9, fused_compile=0.7)
    assert name == f"{STOCK_BEST} (fused + torch.compile)"
    assert outcomes["autocast bf16"] == "illegal instruction on this CPU"
    assert outcomes["autocast bf16 + fused"] == "not tried: bf16 dies here"
    assert outcomes["autocast bf16 + fused + torch.compile"] == "not tried: bf16 dies here"


def test_stock_that_dies_as_it_comes_can_still_have_a_best(monkeypatch):
    died = SideDied("stock default: segmentation fault")
    name, outcomes = best_of(monkeypatch, quick=True, default=died, fused=0.8, bf16=died, bf16_fused=0.5)
    assert name == f"{STOCK_BEST} (fused)"
    assert outcomes["as it comes"] == "segmentation fault"


class Mortal(Scripted):
    """Of which those that fail do so at their first step."""

    def __init__(self, name, config, limit=None):
        super().__init__(name, config, limit)
        self.facts |= {"precision": "fp32", "units": 8, "unit": "samples", "parameters": 10, "dropout": False}
        self.losses, self.peaks, self.frozen = [], [], []

    def run(self, steps, limit=None):
        answer = super().run(steps, limit)
        self.losses += [1.0] * steps
        self.peaks += [1 << 20] * steps
        return answer | {"faults": 0}


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


def test_that_no_side_can_be_measured_is_an_error(stock):
    def fail(side):
        raise SideFailed(f"{side.name}: gone")

    with pytest.raises(SideFailed, match="no side could be measured: stock default: gone"):
        step.each([stock], {}, fail)


def test_the_default_can_be_the_best(monkeypatch):
    late = SideLate("stock (autocast bf16): no answer within 20 s")
    name, outcomes = best_of(monkeypatch, quick=True, fused=1.1, bf16=late)
    assert name == STOCK_DEFAULT
    assert outcomes["autocast bf16"] == "no answer within 20 s"
    assert outcomes["autocast bf16 + fused"].startswith("not tried")


@pytest.mark.parametrize("name", WORKLOADS)
def test_data_is_a_function_of_the_seed(name):
    first, again = (WORKLOADS[name].batch(torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], WORKLOADS[name].batch(torch.Generator().manual_seed(4))[0])


def test_masked_words_are_to_be_predicted_and_no_others():
    inputs, labels = WORKLOADS["bert"].batch(torch.Generator().manual_seed(0))
    chosen = labels != IGNORED
    assert 0.1 < chosen.float().mean() < 0.2
    assert 0.7 < (inputs[chosen] == 30521).float().mean() < 0.9
    assert int((inputs[~chosen] == 30521).sum()) <= 1  # the last word of all, by chance


@pytest.mark.parametrize(
    ("name", "millions"),
    [("mlp", 49.8), ("llama 4 x 256", 109.5), ("llama 1 x 1024", 109.5), ("bert", 109.5), ("fastspeech2", 9.8)],
)
def test_the_models_have_the_sizes_of_their_names(name, millions):
    with torch.device("meta"):
        model = WORKLOADS[name].build()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    if name in ("llama 4 x 256", "llama 1 x 1024", "bert"):  # tied
        assert model.head.weight is next(m for m in model.modules() if isinstance(m, nn.Embedding)).weight


def test_the_optimizer_of_stock_is_as_it_comes():
    training = step_side.Training(TINY.config())
    assert type(training.optimizer) is torch.optim.AdamW
    assert training.optimizer.defaults["fused"] is None
    assert step_side.Training(TINY.config(fused=True)).optimizer.defaults["fused"] is True


def test_long_steps_are_shown_without_an_exponent():
    sides = [measured(STOCK_DEFAULT, [24390.4, 24390.4])]
    lines = step_table.lines(Result(Case("mlp"), sides, [], [], 2, {}))
    assert "24390 [24390..24390]" in lines[2]

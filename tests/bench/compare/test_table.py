"""A comparison as text and as JSON."""

import json
import math
from dataclasses import replace
from pathlib import Path

from fullstride.bench.compare import table
from fullstride.bench.compare.outcome import Steps, Turns
from fullstride.bench.measure import Timing
from fullstride.bench.step import results
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT, Case
from fullstride.bench.step.results import Measured, Result
from fullstride.recipes.config import Freeze, Optimizer

from .tiny import CONFIG, FACTS, OURS


def measured(name, losses, threads=2, frozen=()):
    facts = FACTS | {"threads": threads}
    return Measured(name, "fp32", Timing((1.0, 2.0)), 8.0, 0.0, 1 << 20, 1.0, None, losses, facts, frozen=list(frozen))


def result_of(*sides, failed=None):
    different = results.differences(list(sides), 2)
    return Result(Case("tiny"), list(sides), [], [], 2, different, failed=failed or {})


def content(config, *sides, load=2.0, failed=None, continued=()):
    clock = [0.0, 1.5]
    steps = [Steps(side.name, side.losses, clock, 0.5, 1 << 20, [2.0, 4.0], side.frozen) for side in sides]
    conditions = {"load": load, "usable_cores": 2}
    result = result_of(*sides, failed=failed)
    return table.as_json(conditions, config, result, Turns(2, 1, 3.0, 1), steps, continued)


def test_json_holds_no_nan(tmp_path):
    found = content(CONFIG, measured(OURS, [1.0, math.nan]), measured(STOCK_DEFAULT, [1.0, 2.0]))
    table.write(tmp_path / "compare.json", found)
    again = json.loads((tmp_path / "compare.json").read_text())
    assert again["sides"][0]["losses"] == [1.0, None]
    assert again["loss_differences"] == {OURS: None}
    assert again["losses_at"]["same_step"]["sides"][OURS] == {"step": 2, "seconds": 1.5}
    assert [file.name for file in Path(tmp_path).iterdir()] == ["compare.json"]


def test_rates_and_faults_have_their_spread():
    [side] = content(CONFIG, measured(OURS, [1.0, 1.0]))["sides"]
    assert side["throughput"] == {"median": 6.0, "lowest": 4.0, "highest": 8.0}
    assert side["faults_spread"] == {"median": 3.0, "lowest": 2.0, "highest": 4.0}
    assert side["milliseconds"] == {"median": 1500.0, "lowest": 1000.0, "highest": 2000.0, "rounds": [1000.0, 2000.0]}


def test_what_the_figures_do_not_say_is_noted():
    optimizer = Optimizer(name="lamb", lookahead=True, state_precision="bf16")
    config = CONFIG.replace(freeze=Freeze(enabled=True), optimizer=optimizer)
    sides = measured(OURS, [1.0, 1.0], threads=2), measured(STOCK_DEFAULT, [1.0, 2.0], threads=4)
    assert content(config, *sides, load=3.5)["notes"] == [
        "load 3.5 on 2 cores before the first step: others were measured too, so trust no ratio",
        "threads: fullstride fp32 2, stock default 4",
        "torch has no freezing: stock's is the same rule in plain torch; frozen: fullstride fp32 nothing in 2 steps"
        " | stock default nothing in 2 steps",
        "torch.optim has no LAMB and no Lookahead: stock's is written in plain torch for this comparison",
        "optimizer.state_precision bf16 is ours alone; stock has fp32",
    ]
    assert content(CONFIG, measured(OURS, [1.0, 1.0]), measured(STOCK_DEFAULT, [1.0, 1.0]))["notes"] == []


def test_a_ratio_of_two_precisions_is_noted():
    ours, stock = replace(measured(OURS, [1.0, 1.0]), precision="bf16"), measured(STOCK_DEFAULT, [1.0, 1.0])
    [note] = content(CONFIG, ours, stock)["notes"]
    assert note.startswith("fullstride fp32 computes in bf16, stock default in fp32: --precision fp32 compares")


def test_what_was_frozen_and_when_is_noted():
    config = CONFIG.replace(freeze=Freeze(enabled=True))
    ours = measured(OURS, [1.0, 1.0], frozen=[(31, ["1"]), (40, ["1", "3"]), (50, [])])
    found = content(config, ours, measured(STOCK_DEFAULT, [1.0, 1.0], frozen=[(31, ["1"])]))
    end = "fullstride fp32 after step 31 1; after step 40 1, 3; after step 50 none | stock default after step 31 1"
    assert found["notes"][0].endswith(end)
    assert [side["frozen"] for side in found["sides"]] == [
        [{"step": 31, "layers": ["1"]}, {"step": 40, "layers": ["1", "3"]}, {"step": 50, "layers": []}],
        [{"step": 31, "layers": ["1"]}],
    ]


def test_that_freezing_makes_torch_compile_begin_again_is_noted():
    config = CONFIG.replace(freeze=Freeze(enabled=True))
    best = measured(f"{STOCK_BEST} (torch.compile)", [1.0, 1.0], frozen=[(31, ["1"])])
    assert "compile again, on the clock; frozen: " in content(config, measured(OURS, [1.0, 1.0]), best)["notes"][0]


def test_a_stop_is_noted_with_what_came_of_the_steps_taken_again():
    same = {"steps": 7, "differences": {OURS: 0.0, STOCK_DEFAULT: 0.0}, "others": [], "load": 3.0}
    other = {"steps": 9, "differences": {OURS: 0.0, STOCK_DEFAULT: 2e-6}, "others": [], "load": 0.0}
    found = content(CONFIG, measured(OURS, [1.0, 1.0]), continued=[same, other])
    assert found["notes"] == [
        "stopped after 7 steps and continued: new processes took them again, with the same losses",
        "stopped after 9 steps and continued: new processes took them again, with other losses, relative:"
        " stock default 2.0e-06 at most",
    ]


def test_a_stop_that_was_continued_otherwise_or_on_a_busy_machine_is_noted():
    part = {"steps": 7, "differences": {OURS: 0.0}, "others": [f"{OURS}: threads 2 before, 1 now"], "load": 3.1}
    assert content(CONFIG, measured(OURS, [1.0, 1.0]), continued=[part])["notes"][1:] == [
        "stopped after 7 steps and continued, not with the same: fullstride fp32: threads 2 before, 1 now",
        "stopped after 7 steps and continued at load 3.1 on 2 cores: others were measured too, so trust no ratio",
    ]


def test_a_side_that_failed_has_a_line_of_its_own_in_the_table():
    side, failed = measured(OURS, [1.0, 1.0]), {STOCK_DEFAULT: "no answer within 60 s (after 3 steps)"}
    found = content(CONFIG, side, failed=failed)
    assert found["failed"] == failed
    assert found["notes"] == ["stock default: no answer within 60 s (after 3 steps)"]
    [line] = [line for line in table.lines(found, result_of(side, failed=failed)) if "no answer" in line]
    assert line.split() == ["stock", "default", *failed[STOCK_DEFAULT].split()]


def test_losses_at_the_same_time_are_a_line():
    sides = measured(OURS, [1.0, 0.5]), measured(STOCK_DEFAULT, [1.0, 0.25])
    lines = table.lines(content(CONFIG, *sides), result_of(*sides))
    losses = "fullstride fp32 0.75 [0.5..1] at step 2, stock default 0.625 [0.25..1] at step 2"
    assert f"    of 2, after 1.5 s of training: {losses}" in lines
    assert "  warm-up, before the clock: 1 steps, fullstride fp32 0.5 s, stock default 0.5 s" in lines
    assert "  page faults a step: fullstride fp32 3.00 [2.00..4.00], stock default 3.00 [2.00..4.00]" in lines

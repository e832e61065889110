"""The parts of a training step of FastSpeech 2, by the processes that measure them, with a model of few weights."""

from types import SimpleNamespace

import pytest
import torch
from benchmarks import fastspeech2_profile, fastspeech2_side, figures, render, tables
from benchmarks.fastspeech2_side import PARTS, REST
from benchmarks.result_files import File, part

from fullstride.bench.step import models as step_models
from fullstride.bench.step.cases import STOCK_DEFAULT
from fullstride.counting import flops_of

from ..performance.made_up import CONDITIONS

TINY = step_models.WORKLOADS["tiny-speech"]


@pytest.fixture(scope="module")
def content():
    """What the program would write, of one round and one kind of batch."""
    sides = fastspeech2_profile.profile("tiny-speech", 1, 1, {"16": ("tiny-speech", 1)})
    return {"conditions": CONDITIONS, "rounds": 1, "gflop": fastspeech2_profile.count(TINY), "sides": sides}


def test_the_parts_are_all_of_forward_and_of_backward(content):
    for side in content["sides"]:
        for phase in ("forward", "backward"):
            found = side[f"{phase}_ms"]
            assert tuple(found) == PARTS
            assert all(value > 0 for [value] in found.values()), side["name"]
            [whole] = side["phases_ms"][phase]
            assert sum(value for [value] in found.values()) == pytest.approx(whole)


def test_three_sides_are_measured_and_stock_comes_as_it_is(content):
    ours, default, best = content["sides"]
    assert (ours["name"], default["name"], default["precision"]) == ("fullstride auto", STOCK_DEFAULT, "fp32")
    assert best["name"].startswith("stock at its best (")
    assert best["precision"] == ours["precision"]


def test_memory_is_told_by_what_it_is_for(content):
    default = content["sides"][1]
    weights = 4 * default["parameters"]
    memory = default["memory"]
    assert weights <= memory["parameters_bytes"] <= weights + 4 * 256  # and the edges of the bins
    assert memory["gradients_bytes"] == weights
    assert 2 * weights <= memory["optimizer_bytes"] <= 2 * weights + 4 * 1000  # and a step count a parameter
    assert memory["activations_bytes"] > 0
    assert default["peaks"]["16"]["peak_bytes"] > 50 << 20


def test_operations_of_the_parts_are_those_of_the_whole():
    model, batch = TINY.build(), TINY.batch(torch.Generator().manual_seed(0))
    whole = flops_of(model, lambda twin, batch: TINY.loss(twin, *batch), batch)
    counted = fastspeech2_profile.count(TINY)
    assert tuple(counted) == PARTS
    assert sum(own["forward"] for own in counted.values()) == pytest.approx(whole.forward / 1e9)
    assert sum(own["backward"] for own in counted.values()) == pytest.approx(whole.backward / 1e9)
    assert counted[REST] == {"forward": 0.0, "backward": 0.0}


def test_marks_change_neither_loss_nor_gradients(monkeypatch):
    file = step_models.model_file("fastspeech2")
    monkeypatch.setattr(file, "repeat", file.repeat)  # as it was, afterwards
    found = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = TINY.build()
        if watched:
            fastspeech2_side.watch(model, file, fastspeech2_side.Clock())
        torch.manual_seed(1)
        loss = TINY.loss(model, *TINY.batch(torch.Generator().manual_seed(0)))
        loss.backward()
        found.append([loss, *(p.grad for p in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_estimate_is_of_two_micro_batches_a_step():
    facts = {"precision": "fp32", "parameters": 1, "units": 4000, "memory": {}}
    zeros = dict.fromkeys(PARTS, 0.0)
    turn = {"phases": {"forward": 100.0, "backward": 200.0, "optimizer": 50.0}, "forward": zeros, "backward": zeros}
    side = fastspeech2_profile.as_side(SimpleNamespace(name="x", facts=facts), [turn], {})
    # 24 hours are 7,441,875 frames, 200 times that in steps of 8000 frames, 0.65 s each
    assert side["hours"] == [pytest.approx(200 * 7_441_875 / 8000 * 0.65 / 3600)]
    assert side["units_per_second"] == [pytest.approx(4000 / 0.35)]


def test_every_figure_of_the_table_is_in_the_file_of_results(content):
    file = File("some-cpu-avx2", "fastspeech2_profile", [part("python -m benchmarks.fastspeech2_profile", content)])
    text = render.rendered("<!-- begin: speech_profile avx2 -->\n<!-- end -->", [file])
    assert "| length regulator | 0.00 + " in text
    assert "| 200 epochs of a 24-hour corpus, 16 x 2, estimated | " in text
    problems = figures.problems(text, [file])
    assert problems == []


def test_a_kind_of_cpu_without_results_is_said_to_be_so():
    assert tables.speech_profile([], "amx") == ["On CPUs with AMX nothing was taken yet."]

"""A process against its reference: the real ones, with a model of 83 parameters."""

import contextlib
import json
import math
import os
import signal

import pytest

from fullstride.bench.compare import sides
from fullstride.bench.step import process
from fullstride.bench.step.process import Side
from fullstride.bench.step.stock import WARM_UP
from fullstride.studies.ablate import measuring
from fullstride.studies.ablate.measuring import Bench, Failed
from fullstride.studies.ablate.switching import ALL, ALONE, STOCK, Trial, over_stock
from fullstride.studies.ablate.techniques import TECHNIQUES
from fullstride.studies.ablate.timing import Turns

from . import tiny

TURNS = Turns(3, 2)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with contextlib.closing(Bench(tmp_path_factory.mktemp("bench"), tiny.mlp(), compile_limit=60.0)) as found:
        yield found


@pytest.fixture(scope="module")
def measured(bench):
    """Twice as many micro-batches of half the size, over stock PyTorch."""
    return bench.measure(TECHNIQUES["accumulation"].alone(tiny.subject()), TURNS, TURNS)


def test_speed_memory_and_loss_are_of_both_after_the_same_steps(measured):
    last = WARM_UP + 6
    assert (measured["rounds"], measured["steps"]) == (3, 2)
    assert measured["memory"]["step"] == measured["loss"]["step"] == last
    for name in ("gain", "seconds_with", "seconds_without"):
        assert 0 < measured[name]["lowest"] <= measured[name]["median"] <= measured[name]["highest"]
    assert min(measured["memory"]["with"], measured["memory"]["without"]) > 50 << 20  # torch alone is more
    assert measured["loss"]["with"] == pytest.approx(measured["loss"]["without"], rel=1e-5)  # the same samples
    assert measured["loss"]["difference"]["median"] == pytest.approx(0, abs=1e-5)
    json.dumps(measured, allow_nan=False)


def test_the_gain_is_that_of_having_it():
    for has_it, expected in ((True, 2.0), (False, 0.5)):
        trial = Trial(ALONE, STOCK, has_it)
        assert measuring._compared(trial, [4.0, 4.0], [2.0, 2.0])["gain"]["median"] == expected


def test_a_reference_stays_for_the_next_part_and_its_losses_do_not_change(bench, measured):
    name, side = bench._reference
    losses, pid = list(side.losses), side.pid
    assert (name, len(losses)) == (STOCK, TURNS.last)
    again = bench.measure(TECHNIQUES["lookahead"].alone(tiny.subject()), TURNS, TURNS)
    assert bench._reference[1].pid == pid
    assert bench._reference[1].losses == losses
    assert again["loss"]["with"] != again["loss"]["without"]  # slow weights learn slowly
    assert bench._num_again == 12


def test_what_cannot_be_prepared_is_a_reason_and_the_reference_goes_on(bench, measured):
    trial = Trial(ALONE, STOCK, True, over_stock(["optimizer"], tiny.subject()) | {"recipe": "nowhere"})
    with pytest.raises(Failed, match=r"FileNotFoundError: .*nowhere"):
        bench.measure(trial, TURNS, TURNS)
    with pytest.raises(Failed, match="prepare: without: expected names of"):
        bench.measure(Trial(ALONE, STOCK, True, {"fullstride": "fp32", "options": {"without": ["x"]}}), TURNS, TURNS)
    with pytest.raises(Failed, match="micro_batch: expected 1 or more samples, got 0"):
        bench.measure(Trial(ALONE, STOCK, True, changes={"micro_batch": 0}), TURNS, TURNS)
    assert bench._reference[1].again(0, 1)["losses"]


def test_a_process_that_hangs_is_not_waited_for(bench, measured, monkeypatch):
    monkeypatch.setattr(measuring, "LEAST", 0.0)
    monkeypatch.setattr(measuring, "TIMES", 0.0)
    with pytest.raises(Failed, match="no answer within 0 s"):
        bench.measure(Trial(ALONE, STOCK, True), TURNS, TURNS)


@pytest.fixture
def own_bench(tmp_path):
    with contextlib.closing(Bench(tmp_path, tiny.mlp(), compile_limit=60.0)) as found:
        yield found


def test_a_reference_that_hangs_is_not_waited_for_and_fails_its_own_parts(own_bench, monkeypatch):
    monkeypatch.setattr(sides, "LEAST", 0.0)
    monkeypatch.setattr(sides, "_SLOWEST", math.inf)
    reason = "its reference, stock PyTorch: no answer within 0 s"
    with pytest.raises(Failed, match=reason):
        own_bench.measure(Trial(ALONE, STOCK, True), TURNS, TURNS)
    assert own_bench._reference is None
    monkeypatch.setattr(measuring, "Side", lambda *_: pytest.fail("tried again"))
    with pytest.raises(Failed, match=reason):
        own_bench.measure(Trial(ALONE, STOCK, True), TURNS, TURNS)


def test_a_reference_that_dies_in_its_turn_is_replaced_for_the_next_part(own_bench):
    own_bench.folder.provide(TURNS.last)
    reference = own_bench._stand(STOCK, TURNS, fresh=False)
    os.kill(reference.pid, signal.SIGKILL)
    with pytest.raises(Failed, match="its reference, stock PyTorch: its process ended, killed by signal 9"):
        own_bench._turn_of(reference, WARM_UP, 2, fresh=False)
    assert own_bench._stand(STOCK, TURNS, fresh=False).pid != reference.pid


def test_without_stock_the_parts_against_all_go_on(own_bench, monkeypatch):
    settings = own_bench._settings
    nowhere = {"recipe": "nowhere"}
    monkeypatch.setattr(own_bench, "_settings", lambda name: nowhere if name == STOCK else settings(name))
    plan = own_bench.find_out()
    assert plan.speeds[STOCK] == plan.speeds[ALL]
    with pytest.raises(Failed, match=r"its reference, stock PyTorch: FileNotFoundError: .*nowhere"):
        own_bench.measure(Trial(ALONE, STOCK, True), TURNS, TURNS)
    assert own_bench.measure(TECHNIQUES["heap"].within(tiny.subject()), TURNS, TURNS)["rounds"] == 3


def test_a_process_of_one_technique_has_that_one_alone(bench, measured, monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")  # the user's: stock PyTorch has it, too
    settings = TECHNIQUES["activations"].alone(tiny.subject()).settings
    with contextlib.closing(Side("it", {"recipe": str(bench.folder.path)} | settings)) as side:
        side.run(1)
        found = side.explain()
    assert set(found["used"]) == {"activations", "fusion"}
    assert "heap as it comes: FULLSTRIDE_HEAP=0" in "\n".join(found["lines"])
    assert "threads as they are" in "\n".join(found["lines"])
    assert side.facts["environment"]["MALLOC_TOP_PAD_"] == "1"
    assert process.environment_of({})["MALLOC_TOP_PAD_"] == "1"
    assert not [line for line in found["lines"] if line.startswith("optimizer")]


def test_a_process_that_only_imports_has_the_heap_alone(monkeypatch):
    settings = TECHNIQUES["heap"].alone(tiny.subject()).settings
    monkeypatch.setenv("FULLSTRIDE_HEAP", "0")
    environment = process.environment_of(settings)
    assert environment["FULLSTRIDE_HEAP"] == "1"
    assert "PYTHONPATH" in environment
    assert "FULLSTRIDE_HEAP" not in process.environment_of({})

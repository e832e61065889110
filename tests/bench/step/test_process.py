"""The processes of the benchmark: what they answer, and how their end is told."""

import mmap
import os
import signal
from pathlib import Path

import pytest
import torch

from fullstride.bench.step import benchmark as step
from fullstride.bench.step import process as step_process
from fullstride.bench.step import side as step_side
from fullstride.bench.step.cases import STOCK_DEFAULT, Case
from fullstride.bench.step.process import Side, SideDied, SideFailed, SideLate

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


def test_that_no_side_can_be_measured_is_an_error(stock):
    def fail(side):
        raise SideFailed(f"{side.name}: gone")

    with pytest.raises(SideFailed, match="no side could be measured: stock default: gone"):
        step.each([stock], {}, fail)


def test_the_optimizer_of_stock_is_as_it_comes():
    training = step_side.Training(TINY.config())
    assert type(training.optimizer) is torch.optim.AdamW
    assert training.optimizer.defaults["fused"] is None
    assert step_side.Training(TINY.config(fused=True)).optimizer.defaults["fused"] is True

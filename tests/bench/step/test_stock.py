"""The search for stock PyTorch at its best."""

import contextlib

from fullstride.bench.step import stock as step_stock
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT, Case
from fullstride.bench.step.process import SideDied, SideFailed, SideLate

from .scripted import Scripted

TINY = Case("tiny")


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


def test_the_default_can_be_the_best(monkeypatch):
    late = SideLate("stock (autocast bf16): no answer within 20 s")
    name, outcomes = best_of(monkeypatch, quick=True, fused=1.1, bf16=late)
    assert name == STOCK_DEFAULT
    assert outcomes["autocast bf16"] == "no answer within 20 s"
    assert outcomes["autocast bf16 + fused"].startswith("not tried")

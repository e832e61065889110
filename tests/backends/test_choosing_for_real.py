"""The choice on this machine, and on a sick one, by real child processes."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import fullstride
from fullstride import info
from fullstride.backends import cache, choosing
from fullstride.backends.trials import parent, verdicts
from fullstride.machine import memory
from fullstride.ops import products


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where the cache is, with nothing in it."""
    monkeypatch.setenv("FULLSTRIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FULLSTRIDE_PRECISION", raising=False)
    monkeypatch.setattr(cache, "_here", {})


def test_this_machine_is_measured_in_a_child_that_leaves_no_trace_here(folder):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    before = products.backend(torch.float32), products.backend(torch.bfloat16)
    peak = memory.peak_bytes() or 0
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        choice = choosing.choose()
    assert (memory.peak_bytes() or 0) - peak < 20 << 20
    assert torch.equal(torch.rand(3), expected)
    assert (products.backend(torch.float32), products.backend(torch.bfloat16)) == before
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for backend in products.built(dtype):
            assert choice.verdicts[verdicts.product_name(precision, backend)] == "fine"
    assert choice.rates["fp32"]["many rows"].keys() == set(products.built(torch.float32))
    assert all(rate > 0 for rates in choice.rates["fp32"].values() for rate in rates.values())
    for name in ("matmul", "convolution", "attention", "LSTM"):
        assert choice.verdicts[f"torch's bf16 {name}"] == "fine"
    assert {"torch's fp16 product", "torch's int8 product"} < choice.verdicts.keys()
    assert choosing.choose().rates == choice.rates


def test_a_sick_machine_is_trained_on_in_fp32_and_says_why(folder, monkeypatch, quiet):
    """Through prepare() and a real child, whose candidates misbehave."""
    sick = partial(parent.run, candidates="tests.backends.bad_candidates", limit=2.0)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])
    monkeypatch.setattr(parent, "run", sick)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    model = nn.Linear(6, 3)
    fullstride.prepare(model, torch.optim.SGD(model.parameters()))
    model(torch.ones(2, 6)).sum().backward()
    record = fullstride.explain(model)
    assert record.precision == "fp32"
    assert record.reason.startswith("bf16 cannot be used here: torch's bf16 product: dies with SIGILL here, ")
    assert "excluded   our fp32 product: dies with SIGSEGV here" in str(record)
    assert "excluded   torch's bf16 convolution: hangs: no result within 2 s" in str(record)
    assert products.backends(torch.float32) == ("torch",)
    again = nn.Linear(6, 3)
    with pytest.raises(ValueError, match=r"^precision: bf16 \(as asked for\) cannot be used here: torch's bf16"):
        fullstride.prepare(again, torch.optim.SGD(again.parameters()), precision="bf16")
    assert "torch's bf16 product: dies with SIGILL here" in info.as_text(info.collect(measure=False))

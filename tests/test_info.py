import json
import subprocess
import sys

from fullstride import info
from fullstride.backends import choosing
from fullstride.machine import onednn

MKL = """PyTorch built with:
  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64 architecture applications
  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80afa71049cd69a3df32adcccb623b12cd7baa22)
  - CPU capability usage: AVX2
  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release"""
ARM = """PyTorch built with:
  - Intel(R) MKL-DNN v3.7.1 (Git Hash 8d263e693366ef8db40acc569cc7d8edf644556d)
  - CPU capability usage: SVE256
  - Build settings: BLAS_INFO=open, BUILD_TYPE=Release"""


def test_build_of_torch_is_understood():
    assert info.torch_build(MKL) == {"blas": "mkl 2024.2", "onednn": "3.12.0", "cpu_capability": "AVX2"}
    assert info.torch_build(ARM) == {"blas": "open", "onednn": "3.7.1", "cpu_capability": "SVE256"}
    assert info.torch_build("") == {"blas": "unknown", "onednn": "none", "cpu_capability": "unknown"}


def test_exactly_one_openmp_runtime_is_mapped():
    # In a process of its own: other packages, sentencepiece 0.2.3 say, bring another one when a test imports them.
    code = "from fullstride import _native; from fullstride import info; assert _native.available(); "
    code += "print(*info.openmp_runtimes(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1, done.stdout


def test_facts_are_plain_data_and_become_text():
    facts = info.collect(measure=False)
    assert json.loads(json.dumps(facts)).keys() == facts.keys()
    assert "measured" not in facts
    facts["measured"] = {"gflops": {"fp32": 123.4}, "gigabytes_per_second": {"read": 45.6}}
    text = info.as_text(facts)
    for part in (facts["cpu"]["model"], "usable", "huge pages", facts["kernels"]["isa"], "oneDNN", "123.4", "45.6"):
        assert part in text


def test_unknown_values_are_said_to_be_unknown():
    facts = info.collect(measure=False)
    facts["memory"] |= {"total": None, "limit": 3 << 29, "huge_pages": None}
    facts["products"] = None
    facts["cores"]["quota"] = 1.5
    facts["kernels"] = {"library": None, "isas": {}, "isa": "torch"}
    text = info.as_text(facts)
    for part in ("unknown, 1.5 GiB allowed by cgroup", "huge pages unknown", "1.5 by cgroup quota", "references serve"):
        assert part in text
    assert "precision    not measured on this machine yet" in text


def test_precision_that_auto_takes_is_shown_with_its_reason(monkeypatch):
    backends = {"float32": {"few rows": "onednn", "many rows": "torch"}, "bfloat16": {"few rows": "native"}}
    rates = {"fp32": {"few rows": {"onednn": 123.0}}}
    found = {"our bf16 product": "fine", "torch's bf16 product": "dies with SIGILL"}
    notes = ["taken under load (x)"]
    choice = choosing.Choice("bf16", "bf16 products are twice as fast", backends, rates, found, notes)
    monkeypatch.setattr(choosing, "recall", lambda: choice)
    monkeypatch.setattr(onednn, "describe", lambda: "oneDNN capped at AVX512_CORE_BF16")
    facts = info.collect(measure=False)
    assert facts["products"]["backends"] == backends
    text = info.as_text(facts)
    assert "precision    auto takes bf16: bf16 products are twice as fast" in text
    assert "products     fp32: few rows onednn 123 GFLOP/s, many rows torch\n" in text
    assert "             rates taken under load (x)\n" in text
    assert "tried        torch's bf16 product: dies with SIGILL here\n" in text
    assert "             1 of 2 candidates are fine" in text
    assert "             oneDNN capped at AVX512_CORE_BF16\n" in text

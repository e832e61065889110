import json
import os
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from fullstride import _native, runtime
from fullstride.backends import cache
from fullstride.backends.trials import verdicts
from fullstride.machine import cpu
from fullstride.ops import products

# A loaded machine misses deadlines and is slow in making examples; what was found before would make two runs of the
# same tests differ.
settings.register_profile("any machine", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it would say stands below, as an error
    SUPPORTED = [name for name, supported in _native.isas().items() if supported]
if not SUPPORTED:  # every test with the fixture would be skipped, and the run be green
    raise pytest.UsageError("the tests need the kernel library: install the package with a C++ compiler at hand")


@pytest.fixture(params=SUPPORTED)
def isa(request):
    """The test runs once in every variant this machine can run."""
    with _native.use_isa(request.param):
        yield request.param


@pytest.fixture
def num_threads():
    """num_threads(n) sets the threads of torch and the kernels for the rest of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def quiet(monkeypatch):
    """prepare() says nothing."""
    monkeypatch.setenv("FULLSTRIDE_QUIET", "1")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """One cache for all workers, and not the user's. It says that all was measured: racing takes seconds each time.

    Findings stand there for every variant and the usual numbers of threads. Tests of the measuring itself have a folder
    of their own; what no entry fits, FULLSTRIDE_NATIVE=0 say, is measured by the first process that needs it.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "fullstride-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FULLSTRIDE_CACHE", str(folder))
        with cache.lock():
            if not (folder / "machine.json").exists():
                _write_findings(folder)
        yield


def _write_findings(folder: Path) -> None:
    entries: dict[str, object] = {}
    for name in SUPPORTED:
        with _native.use_isa(name):
            entries |= {cache.key(threads): asdict(made_up()) for threads in range(1, 9)}
    (folder / "machine.json").write_text(json.dumps({"version": cache._VERSION, "entries": entries}))


def made_up() -> cache.Findings:
    """Of a machine on which every backend wins somewhere, and bf16 where the CPU has instructions for it."""
    features = cpu.describe().features
    low = 2.0 if any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")) else 0.1
    rates: dict[str, dict[str, dict[str, float]]] = {"fp32": {}, "bf16": {}, "fp16": {}}
    fine: dict[str, str] = {}
    for precision, dtype, factor in (("fp32", torch.float32, 1.0), ("bf16", torch.bfloat16, low)):
        names = products.built(dtype)
        fine |= {verdicts.product_name(precision, name): verdicts.FINE for name in names}
        for i, shape in enumerate(products.SHAPES):
            rates[precision][shape] = {name: factor * (150.0 + 50 * (j == i)) for j, name in enumerate(names[::-1])}
        rates["fp16"] |= {shape: {"torch": 30.0} for shape in products.SHAPES}
    fine |= {verdicts.operation_name("bf16", operation): verdicts.FINE for operation in verdicts.OPERATIONS}
    fine |= {verdicts.product_name("fp16", "torch"): verdicts.FINE, "torch's int8 product": verdicts.FINE}
    return cache.Findings(fine, rates, taken=time.time())


@pytest.fixture(autouse=True)
def _nothing_prepared():
    """Each test begins in a process without prepared models; what it prepared and did not restore ends with it."""
    with runtime.fresh():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """A fixture that several tests share, such as a trained run, leaves nothing prepared behind it either."""
    if fixturedef.scope == "function":
        return (yield)
    with runtime.fresh():
        return (yield)

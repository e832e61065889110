import warnings

import pytest
import torch

from fullstride import _native
from fullstride.ops import linear

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
    """What is measured once is measured once for all tests, and not kept for the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FULLSTRIDE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _process_as_before():
    """prepare() chooses for the whole process; what it chose in one test is not for the next."""
    yield
    linear.exclude({})
    for dtype in (torch.float32, torch.bfloat16):
        linear.set_backend(dtype, "torch")
    linear.overlap_weight_grads(False)
    torch.set_flush_denormal(False)
    _native.library().fs_flush_denormals_everywhere(0)

import pytest
import torch

from fullstride import _native

SUPPORTED = [name for name, supported in _native.isas().items() if supported]


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

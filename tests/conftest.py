import pytest

from fullstride import _native

SUPPORTED = [name for name, supported in _native.isas().items() if supported]


@pytest.fixture(params=SUPPORTED)
def isa(request):
    """The test runs once in every variant this machine can run."""
    with _native.use_isa(request.param):
        yield request.param

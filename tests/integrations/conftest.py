import pytest


@pytest.fixture
def one_thread(num_threads):
    """The models are too small for more; prepare() takes all cores, for which these tests have no use either."""
    num_threads(1)

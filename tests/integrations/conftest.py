import pytest
from accelerate.state import AcceleratorState, GradientState


@pytest.fixture
def one_thread(num_threads):
    """For the stock side, whose models are too small for more."""
    num_threads(1)


@pytest.fixture(autouse=True)
def _no_accelerator_left():
    """Accelerators share their precision and their counts for a whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()

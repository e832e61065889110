"""Studies that were begun with another number of threads are refused, and an earlier test may have left another one."""

import pytest
import torch

FRESH = torch.get_num_threads()  # of a process that has run no test yet: pytest reads this file before the first


@pytest.fixture(scope="module", autouse=True)
def threads_for_what_a_module_shares():
    torch.set_num_threads(FRESH)


@pytest.fixture(autouse=True)
def threads_of_a_fresh_process():
    torch.set_num_threads(FRESH)

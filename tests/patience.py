import os
import time
from collections.abc import Callable

PATIENCE = 300
"""Seconds that a test waits for another process or thread at most. A test that passes does not wait so long: it only
must not fail on a machine that does much else, where `import torch` alone has taken 25 s."""


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def lives(group: int) -> bool:
    """Whether a process of a group lives; for groups that have no child of this process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

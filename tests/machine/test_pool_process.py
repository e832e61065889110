import os
import signal
import subprocess
import sys

import pytest

from fullstride.machine import pool_process

from ..patience import lives, wait_until

SCRIPT = """
import os
import time
from fullstride.machine import pool_process

print("script", flush=True)
pool = pool_process.executor(1)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(1000)  # until killed
"""


_calls: list[int] = []


def _count():
    _calls.append(1)


def _counted():
    return len(_calls)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_does_not_end_it(signum):
    with pool_process.executor(1) as pool:
        pid = pool.submit(os.getpid).result()
        os.kill(pid, signum)
        assert pool.submit(os.getpid).result() == pid


def test_what_begins_a_process_is_called_once_in_it():
    with pool_process.executor(1, _count) as pool:
        assert [pool.submit(_counted).result() for _ in range(2)] == [1, 1]
    assert _counted() == 0


def test_it_ends_when_its_parent_is_killed_and_runs_no_script_without_a_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == b"script\n"
            assert int(parent.stdout.readline()) != parent.pid
        finally:
            parent.kill()
    wait_until(lambda: not lives(parent.pid))

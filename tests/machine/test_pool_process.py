import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from fullstride.machine import pool_process

from ..patience import lives, wait_until

SCRIPT = """
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from fullstride.machine import pool_process

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=pool_process.begin)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(1000)  # until killed
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_does_not_end_it(signum):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=pool_process.begin) as pool:
        pid = pool.submit(os.getpid).result()
        os.kill(pid, signum)
        assert pool.submit(os.getpid).result() == pid


def test_it_ends_when_its_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            assert int(parent.stdout.readline()) != parent.pid
        finally:
            parent.kill()
    wait_until(lambda: not lives(parent.pid))

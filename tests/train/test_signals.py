import contextlib
import os
import signal
import threading

import pytest

from fullstride.train.signals import Signals

from ..patience import PATIENCE
from . import processes

# Says "ready", then each change of the flags; ends when it is told so.
LOOP = """
import sys, time
from fullstride.train.signals import Signals
with Signals() as signals:
    print("ready", flush=True)
    while True:
        if signals.save: signals.save = False; print("save", flush=True)
        if signals.stop is not None: break
        time.sleep(0.001)
    print("stop", signals.stop, flush=True)
    sys.stdin.readline()  # the saving
print("saved", signals.stop)
"""


@pytest.fixture
def loop():
    process = processes.start(LOOP)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def send(process, number):
    process.send_signal(number)
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wish_to_stop_is_a_flag(loop, number):
    assert send(loop, number) == f"stop {int(number)}\n"
    assert loop.communicate("\n")[0] == f"saved {int(number)}\n"
    assert loop.returncode == 0


def test_sigusr1_asks_for_each_saving_and_goes_on(loop):
    assert send(loop, signal.SIGUSR1) == "save\n"
    assert send(loop, signal.SIGUSR1) == "save\n"
    assert loop.poll() is None


def test_a_second_ctrl_c_leaves_at_once(loop):
    send(loop, signal.SIGINT)
    loop.send_signal(signal.SIGINT)
    assert loop.wait(timeout=PATIENCE) == 130
    assert loop.stdout.read() == ""


def test_a_second_sigterm_lets_a_saving_finish(loop):
    send(loop, signal.SIGTERM)
    loop.send_signal(signal.SIGTERM)
    assert loop.communicate("\n")[0] == f"saved {int(signal.SIGTERM)}\n"
    assert loop.returncode == 0


def test_one_ctrl_c_after_sigterm_lets_a_saving_finish(loop):
    send(loop, signal.SIGTERM)
    loop.send_signal(signal.SIGINT)
    assert loop.communicate("\n")[0] == f"saved {int(signal.SIGTERM)}\n"


def test_a_terminal_gets_its_cursor_back_when_a_second_ctrl_c_leaves():
    code = """
import os, signal
from fullstride.train.signals import Signals
if os.fork():
    os._exit(0 if os.waitstatus_to_exitcode(os.wait()[1]) == 130 else 1)
with Signals():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
"""
    assert processes.run_on_terminal(code) == "\x1b[?25h\r\n"
    assert processes.run_on_terminal(code, TERM="dumb") == ""


def test_handlers_are_as_before_afterwards():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with contextlib.suppress(KeyError), Signals():
        assert [signal.getsignal(number) for number in numbers] != before
        raise KeyError
    assert [signal.getsignal(number) for number in numbers] == before


def test_other_threads_may_train_without_signals():
    before, seen = signal.getsignal(signal.SIGUSR1), []

    def train():
        with Signals() as signals:
            seen.extend([signal.getsignal(signal.SIGUSR1), signals.stop, signals.save])

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [before, None, False]


def test_flags_are_fresh_in_each_run():
    with Signals() as first:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
    with Signals() as second:
        pass
    assert (first.stop, first.save) == (signal.SIGTERM, True)
    assert (second.stop, second.save) == (None, False)

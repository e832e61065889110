"""Why a run ended before its last step, and the exit code that says so."""

import contextlib
import signal
from collections.abc import Iterator

DONE, FAILED, BAD_INPUT, DIVERGED, WORKER_DIED, FOLDER_IN_USE, PEER_LOST = range(7)
EXIT_CODES = {
    DONE: "done",
    FAILED: "failed",
    BAD_INPUT: "bad input: a wrong option, config, file or folder",
    DIVERGED: "training diverged: gradients or weights are not finite",
    WORKER_DIED: "a data worker died; the run was saved",
    FOLDER_IN_USE: "another process uses the run folder",
    PEER_LOST: "another process of the run ended or did not answer; the run was saved where it could be",
    130: "stopped by Ctrl-C (SIGINT); the run was saved, unless it was the second one",
    143: "stopped by SIGTERM; the run was saved",
}


class RunEnded(Exception):
    """The message is one line for the user; `code` the exit code. is_told_elsewhere: another process says it."""

    code = FAILED
    is_told_elsewhere = False


class Diverged(RunEnded):
    code = DIVERGED


class DataWorkerDied(RunEnded):
    code = WORKER_DIED


class ToldElsewhere(RunEnded):
    code = BAD_INPUT
    is_told_elsewhere = True

    def __init__(self) -> None:
        super().__init__("the first process of the run says why")


class PeerLost(RunEnded):
    code = PEER_LOST


class Interrupted(RunEnded):
    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.code = 128 + signum


@contextlib.contextmanager
def worker_deaths() -> Iterator[None]:
    """Around what asks the loader for a batch."""
    from ..data.loader import WorkerDied  # loads torch, which the commands that only read the codes do without

    try:
        yield
    except WorkerDied as error:
        raise DataWorkerDied(str(error)) from None

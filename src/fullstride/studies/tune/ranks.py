"""The processes of one trial: the first starts the others, and all end with whichever of them ends first.

    tune --request--> first --what was requested (distributed/world.py)--> others
         <--answer--

The others are copies of the first, plain children in its process group, so that who ends the group ends all of them,
and who counts the memory of its children counts theirs. They meet in a file beside the run folder, and gloo uses the
loopback interface, as with `fullstride train --nproc`. Each is pinned to its own cores before torch is loaded.

What happens to one of them is the answer of the first, at once: gloo tells of a connection that is closed, but not of a
process that never came, nor why one went. If the first one has gone, the others go, whatever they wait for.
This file imports no torch.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from ...machine import placement

LOST = "lost"  # the kind of an error that says no more than that another process has gone
_LOOK = 0.2  # seconds from one look at the others to the next
_PATIENCE = 10.0  # seconds until a process whose connections are closed has ended, too


class _Other(NamedTuple):
    process: subprocess.Popen[bytes]
    said: IO[bytes]


class Others:
    """All but the first, seen from it; none in a trial of one process."""

    def __init__(self, started: Sequence[_Other] = ()) -> None:
        self._started = started
        self._watch: threading.Thread | None = None

    def watch(self, out: TextIO) -> None:
        """From now on the first of them that fails ends this process as well, whose last answer says why."""
        if self._started:
            self._watch = threading.Thread(target=self._until_one_fails, args=(out,), daemon=True)
            self._watch.start()

    def wait_for_cause(self) -> None:
        """Called where a connection was closed: does not return if one of them has failed."""
        if self._watch is not None:
            self._watch.join(_PATIENCE)

    def _until_one_fails(self, out: TextIO) -> None:
        while True:
            for rank, other in enumerate(self._started, 1):
                if failure := _failure(rank, other):
                    say(out, failure)
                    os._exit(1)
            time.sleep(_LOOK)


def begin(wish: dict[str, Any]) -> Others:
    """Makes this process one of wish["processes"], the first one unless it was started as another."""
    num, rank = wish.get("processes", 1), wish.get("rank", 0)
    if num == 1:
        return Others()
    folder = Path(f"{wish['run']}-ranks")
    os.environ |= {"WORLD_SIZE": str(num), "LOCAL_WORLD_SIZE": str(num), "FULLSTRIDE_STORE": str(folder / "store")}
    # A launcher that has bound `tune` has not bound these; 0 is the user's wish.
    os.environ.setdefault(placement.VARIABLE, "1")
    if rank:
        threading.Thread(target=_end_with, args=(wish["first"],), daemon=True).start()
        others = Others()
    else:
        folder.mkdir(parents=True)
        others = Others([_start(wish, other, folder) for other in range(1, num)])  # before this one is pinned
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    placement.pin(rank, num)
    return others


def say(out: TextIO, answer: dict[str, Any]) -> None:
    """In one piece, as two threads may."""
    out.write(json.dumps(answer) + "\n")
    out.flush()


def _start(wish: dict[str, Any], rank: int, folder: Path) -> _Other:
    said = tempfile.TemporaryFile()  # noqa: SIM115  it is read when the process has ended
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.trial", json.dumps(wish | {"rank": rank, "first": os.getpid()})],
        stdin=subprocess.DEVNULL, stdout=said,
        env=os.environ | {"TMPDIR": str(folder)},  # killed, it leaves what it has there to whoever removes the run
    )  # fmt: skip
    return _Other(process, said)


def _failure(rank: int, other: _Other) -> dict[str, Any] | None:
    """The last answer of a process that has failed by itself."""
    code = other.process.poll()
    if not code:
        return None
    if code < 0:
        return {"error": f"rank {rank} was ended by {signal.Signals(-code).name}", "kind": "failure"}
    other.said.seek(0)
    lines = other.said.read().splitlines()
    last = None
    with contextlib.suppress(ValueError, IndexError):
        last = json.loads(lines[-1])
    if not last:
        return {"error": f"rank {rank} ended with exit code {code}", "kind": "failure"}
    return None if last["kind"] == LOST else last


def _end_with(first: int) -> None:
    """The first process may be killed while this one waits for it where nobody tells."""
    while os.getppid() == first:
        time.sleep(_LOOK)
    os._exit(1)

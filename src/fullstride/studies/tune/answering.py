"""How a program of this folder answers: what goes wrong is its last line, {"error": text, "kind": kind}.

kind: "input" what the user can put right, "lost" another process of the trial has gone, "failure" all else.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, TextIO

from ...bench.step.side import answers
from ...train.errors import Diverged
from ...train.together import is_loss
from .ranks import LOST, Others, say


def answer_by(work: Callable[[dict[str, Any], TextIO], None], others: Others | None = None) -> int:
    """Runs work(wish, out). others: who train with this process; one that fails ends it."""
    others = others or Others()
    with answers() as out:
        others.watch(out)
        try:
            work(json.loads(sys.argv[1]), out)
        except Exception as error:
            if is_loss(error):
                others.wait_for_cause()
            say(out, {"error": _text(error), "kind": _kind(error)})
            raise
    return 0


def _text(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    is_plain = isinstance(error, ValueError | OSError | Diverged)
    return lines[0] if is_plain else f"{type(error).__name__}: {lines[0]}"


def _kind(error: Exception) -> str:
    if is_loss(error):
        return LOST
    return "input" if isinstance(error, ValueError | FileNotFoundError) else "failure"

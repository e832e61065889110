"""Which of several processes the others wait for. From the column `ranks` of rows of metrics alone.

The exchange of gradients takes the same time for all, so the process that waits least is the slowest, and what others
wait longer than it is time they wait for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_SLOW = 0.1  # of the time, that others wait for a process which is then named
ROWS = 3  # in a row: one may have had something else to do


def straggler(everyone: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """(the rank that waits least, the mean share of the time that the others wait longer than it)."""
    shares = [one["wait"] / one["wall"] if one["wall"] > 0 else 0.0 for one in everyone]
    slowest = min(range(len(shares)), key=shares.__getitem__)
    others = [share - shares[slowest] for rank, share in enumerate(shares) if rank != slowest]
    return slowest, sum(others) / max(1, len(others))


def lasting(found: Sequence[tuple[int, float]]) -> int | None:
    """The rank that was the straggler in each of the last ROWS rows, if one was. found: the stragglers of all rows."""
    last = found[-ROWS:]
    is_one = len(last) == ROWS and len({rank for rank, _ in last}) == 1
    return last[-1][0] if is_one and all(share > _SLOW for _, share in last) else None

"""Which of several processes the others wait for. From the column `ranks` of rows of metrics alone.

The exchange of gradients takes the same time for all, so the process that waits least is the slowest, and what others
wait longer than it is time they wait for it. Rows are looked at in spells of some seconds: on a machine that does
something else besides, each of them has another slow process in every few steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SPELL = 10.0  # seconds at least
LASTING = 3  # spells in a row
_SLOW = 0.1  # of the time, that others wait for a process which is then named

Row = Sequence[Mapping[str, Any]]  # of all ranks


class Spell(NamedTuple):
    rank: int  # that waits least
    share: float  # of the time, that the others wait longer than it; their mean
    num_rows: int


class Spells:
    """Fed with row after row."""

    def __init__(self) -> None:
        self._wait: list[float] = []
        self._wall: list[float] = []
        self._num_rows = 0

    def add(self, row: Row) -> Spell | None:
        """The spell that this row completes, if it does."""
        before = zip(self._wait, self._wall, strict=True) if self._num_rows else ((0.0, 0.0) for _ in row)
        sums = [(wait + one["wait"], wall + one["wall"]) for (wait, wall), one in zip(before, row, strict=True)]
        self._wait, self._wall = [wait for wait, _ in sums], [wall for _, wall in sums]
        self._num_rows += 1
        if min(self._wall) < SPELL:
            return None
        found = Spell(*straggler(self._wait, self._wall), self._num_rows)
        self._num_rows = 0
        return found


def spells(rows: Iterable[Row]) -> Iterator[Spell]:
    """Without the last rows, if they do not make up one."""
    found = Spells()
    return (spell for spell in map(found.add, rows) if spell is not None)


def straggler(wait: Sequence[float], wall: Sequence[float]) -> tuple[int, float]:
    """(the rank that waits least, the mean share of the time that the others wait longer than it)."""
    shares = [a / b for a, b in zip(wait, wall, strict=True)]
    slowest = min(range(len(shares)), key=shares.__getitem__)
    others = [share - shares[slowest] for rank, share in enumerate(shares) if rank != slowest]
    return slowest, sum(others) / max(1, len(others))


def is_lasting(found: Sequence[Spell]) -> bool:
    """Whether the last spells all have the same process as a slow one."""
    last = found[-LASTING:]
    is_one = len(last) == LASTING and len({spell.rank for spell in last}) == 1
    return is_one and all(spell.share > _SLOW for spell in last)

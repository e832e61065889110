"""What the first process says of a slow one. The exchange is played: each row is given."""

import pytest

from fullstride.distributed.world import World
from fullstride.run_folder.stragglers import SPELL
from fullstride.train.progress.ranks import Ranks


class Played(World):
    def __init__(self, rows, rank=0):
        super().__init__(rank, 2, hosts=["alpha", "beta"])
        self.rows = iter(rows)

    def gather(self, value):
        return [value | {"wait": SPELL * share, "wall": SPELL} for share in next(self.rows)]


class Nothing:
    how = "2 processes"

    def take_costs(self):
        return {"sent_mb": 1.0, "wait": 0.0, "wall": 1.0}


def said(caplog, rows, rank=0):
    ranks = Ranks(Played(rows, rank), Nothing())
    for _ in rows:
        ranks.row()
    return [record.getMessage() for record in caplog.records]


FIRST, SECOND = (0.1, 0.4), (0.45, 0.2)  # is slow


def test_a_process_that_stays_slow_is_named_once(caplog):
    expected = "rank 1 on beta is slower than the others, which wait for it 25% of the time"
    assert said(caplog, [SECOND] * 7) == [expected]


@pytest.mark.parametrize("rows", [[SECOND] * 2, [SECOND, SECOND, FIRST, SECOND, SECOND]])
def test_a_process_that_is_slow_for_a_moment_is_not_named(caplog, rows):
    assert said(caplog, rows) == []


def test_another_one_is_named_when_it_becomes_slow(caplog):
    assert [text[:6] for text in said(caplog, [SECOND] * 3 + [FIRST] * 3)] == ["rank 1", "rank 0"]


def test_only_the_first_process_speaks(caplog):
    assert said(caplog, [SECOND] * 3, rank=1) == []

"""How many data workers are worth their cores, found out while training.

Data in memory is made faster than it is sent (lightning issue 17410), and a worker takes a core from the training. So
it begins with none, and stays so while at most 1 % of the time is spent waiting. Else 1, 2, 4, ... workers are measured
against the best so far, in turns, by the whole time of a micro-batch; the first number that is not better ends it.
"""

import logging
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

_ALLOWED_SHARE = 0.01  # of the time, for waiting
_WATCHED = 50  # micro-batches, before the share is looked at
_MEASURED = 30  # micro-batches of one measurement
_TURNS = 2  # of each, the better of which counts: what else runs on the machine can only slow one down
_GAIN = 0.02  # below it a difference is taken for chance
_SETTLING = 3  # micro-batches: the first ones of a run or a change are slower


@dataclass
class AutoWorkers:
    """`num` is how many workers to use now; observe() may change it."""

    most: int
    prefetch: int
    num: int = 0
    _best: int = 0
    _share: float | None = None
    _plan: list[int] = field(default_factory=list)  # measurements to come; the first is under way
    _times: dict[int, float] = field(default_factory=dict)  # seconds of a micro-batch, by workers
    _end: str = ""
    _skip: int = _SETTLING
    _count: int = 0
    _waited: float = 0.0
    _total: float = 0.0

    def observe(self, waited: float, computed: float) -> None:
        """The seconds of a micro-batch."""
        if self._end:
            return
        if self._skip:
            self._skip -= 1
            return
        self._count += 1
        self._waited += waited
        self._total += waited + computed
        if self._plan and self._count == _MEASURED:
            self._measured(self._total / self._count)
        elif not self._plan and self._count == _WATCHED:
            self._watched(self._waited / max(self._total, 1e-9))

    def give_up(self, why: str) -> None:
        self._best, self.num, self._end = 0, 0, why
        self._times.clear()
        logger.warning("%s", self)

    def _watched(self, share: float) -> None:
        self._share = share
        if share > _ALLOWED_SHARE:
            self._try(1)
        else:
            self._restart()

    def _measured(self, seconds: float) -> None:
        self._times[self.num] = min(seconds, self._times.get(self.num, seconds))
        tried = max(self._plan)
        del self._plan[0]
        if self._plan:
            self._use(self._plan[0])
        elif self._times[tried] > self._times[self._best] * (1 - _GAIN):
            self._finish()
        else:
            self._best = tried
            if tried < self.most:
                self._try(min(2 * tried, self.most))
            else:
                self._finish()

    def _try(self, num: int) -> None:
        self._plan = [self._best, num] * _TURNS
        self._use(self._plan[0])

    def _finish(self) -> None:
        self._end = "measured"
        self.num = self._best
        logger.info("%s", self)

    def _use(self, num: int) -> None:
        self.num = num
        self._restart()

    def _restart(self) -> None:
        self._skip = _SETTLING + self.num * self.prefetch
        self._count, self._waited, self._total = 0, 0.0, 0.0

    def __str__(self) -> str:
        if self._times:
            times = ", ".join(f"{1e3 * self._times[num]:.2f} ms with {_words(num)}" for num in sorted(self._times))
            now = f"{_words(self.num)}, still measuring" if not self._end else _words(self._best)
            return f"data workers: {now} (a micro-batch took {times})"
        if self._end:
            return f"data workers: none ({self._end})"
        if self._share is None:
            return "data workers: none (nothing measured yet)"
        return f"data workers: {_words(self.num)} (waiting for data took {100 * self._share:.2f} % of the time)"


def _words(num: int) -> str:
    return "none" if num == 0 else str(num)

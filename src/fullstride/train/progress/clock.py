"""Where the time goes: seconds by part of the loop.

    with clock("forward"): ...
    clock.take() -> {"data": ..., "forward": ..., "other": ..., "wall": ...}

One part runs at a time: a part inside another interrupts it, so nothing is counted twice, and all parts with "other"
(what no part claims) add up to "wall".
"""

from time import perf_counter


class Clock:
    """Parts named here are in every take(), others from their first use on. Of one thread."""

    def __init__(self, *parts: str) -> None:
        self._parts: dict[str, _Part] = {}
        self._other = _Part(self)
        self._open = [self._other]  # the innermost part is the last
        self._mark = self._taken = perf_counter()  # up to where time is counted, and where the last take() was
        for part in parts:
            self(part)

    def __call__(self, part: str) -> "_Part":
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = _Part(self)
        return found

    def take(self) -> dict[str, float]:
        """Seconds by part since the last take, "other" after them, and all of it as "wall"."""
        now = perf_counter()
        self._open[-1].seconds += now - self._mark
        taken = {}
        for name, part in (*self._parts.items(), ("other", self._other)):
            taken[name], part.seconds = part.seconds, 0.0
        taken["wall"] = now - self._taken
        self._mark = self._taken = now
        return taken


class _Part:
    """Made once and entered again and again: a `with` makes no objects and takes about a microsecond."""

    __slots__ = ("_clock", "seconds")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = 0.0

    def __enter__(self) -> None:
        clock, now = self._clock, perf_counter()
        clock._open[-1].seconds += now - clock._mark
        clock._mark = now
        clock._open.append(self)

    def __exit__(self, *_: object) -> None:
        clock, now = self._clock, perf_counter()
        self.seconds += now - clock._mark
        clock._mark = now
        clock._open.pop()

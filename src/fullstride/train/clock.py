"""Where the time goes: seconds by part of the loop.

    with clock("forward"): ...
    clock.take() -> {"data": ..., "forward": ..., "other": ..., "wall": ...}

One part runs at a time: a part inside another interrupts it, so nothing is counted twice, and all parts with "other"
(what no part claims) add up to "wall".
"""

from time import perf_counter
from types import TracebackType


class Clock:
    """Parts named here are in every take(), others from their first use on. Of one thread."""

    def __init__(self, *parts: str) -> None:
        self._seconds = dict.fromkeys((*parts, "other"), 0.0)
        self._parts = {name: _Part(self, name) for name in parts}  # made once: a `with` allocates nothing
        self._open = ["other"]
        self._mark = perf_counter()

    def __call__(self, part: str) -> "_Part":
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = _Part(self, part)
            self._seconds.setdefault(part, 0.0)
        return found

    def take(self) -> dict[str, float]:
        """Seconds by part since the last take, "other" after them, and all of it as "wall"."""
        self._switch()
        taken = self._seconds
        self._seconds = dict.fromkeys(taken, 0.0)
        other = taken.pop("other")
        return taken | {"other": other, "wall": sum(taken.values()) + other}

    def _switch(self) -> None:
        """What has passed is of the part that is open."""
        now = perf_counter()
        self._seconds[self._open[-1]] += now - self._mark
        self._mark = now


class _Part:
    __slots__ = ("_clock", "_name")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._clock._switch()
        self._clock._open.append(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock._switch()
        self._clock._open.pop()

"""How fast this machine is at what a model does: rates of its own products, bandwidth by mix and size, cost of a call.

    rate(product)         measured at the product's own sizes (replay.py)
    bandwidth(mix, size)  of torch's passes over arrays of that size, and beyond the caches that of machine/streams.py
    overhead              seconds that Python and autograd take a call: what is left of the step of a tiny model
"""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from ...machine import streams
from . import costs, replay
from .calls import Call

Times = tuple[float, float]  # seconds forward and backward


class Rates(Protocol):
    overhead: float  # seconds a call

    @property
    def peak(self) -> float:
        """GFLOP/s of products at best."""

    def seconds(self, call: Call, adds: bool = False) -> Times:
        """Of a product."""

    def bandwidth(self, mix: str, size: float) -> float:
        """GB/s of a pass over so many bytes, those read and those written together."""


@dataclass
class Given:
    """The same for all sizes: for whoever knows better, and for tests."""

    gflops: float
    gbs: Mapping[str, float]
    overhead: float = 0.0

    @property
    def peak(self) -> float:
        return self.gflops

    def seconds(self, call: Call, adds: bool = False) -> Times:
        forward, backward = (flops / self.gflops / 1e9 for flops in _flops(call))
        return forward, backward

    def bandwidth(self, mix: str, size: float) -> float:
        return self.gbs[mix]


@dataclass
class Measured:
    """To be used inside of replay.setting(). What was measured stands in plain dictionaries, to be kept as JSON."""

    dtype: torch.dtype | None
    peak: float
    products: dict[str, list[float]] = field(default_factory=dict)  # key -> seconds forward and backward
    curves: dict[str, list[list[float]]] = field(default_factory=dict)  # mix -> (bytes, GB/s), bytes rising
    overhead: float = 0.0
    unknown: set[str] = field(default_factory=set)  # products that could not be run alone

    def measure(self, calls: Iterable[Call], adds: Iterable[bool] = (False,)) -> None:
        """Every product of these that is not known yet."""
        for call in calls:
            if call.is_product:
                for adding in adds:
                    self.seconds(call, adding)

    def seconds(self, call: Call, adds: bool = False) -> Times:
        adds = adds and bool({"weight", "bias"} & (call.wants or frozenset()))
        key = call.key + (" adding" if adds else "")
        if key not in self.products and call.key not in self.unknown:
            found = replay.timed(call, self.dtype, adds)
            if found is None:
                self.unknown.add(call.key)
            else:
                self.products[key] = list(found)
                self._raise_peak(call, found)
        if call.key in self.unknown:
            return Given(self.peak, {}).seconds(call)
        forward, backward = self.products[key]
        return forward, backward

    def _raise_peak(self, call: Call, times: Times) -> None:
        """A product of the model may be faster than those of the race."""
        reached = [flops / seconds / 1e9 for flops, seconds in zip(_flops(call), times, strict=True) if flops]
        self.peak = max([self.peak, *reached])

    def bandwidth(self, mix: str, size: float) -> float:
        if mix not in self.curves:
            self.curves[mix] = curve(mix)
        return interpolated(self.curves[mix], size)

    def as_json(self) -> dict[str, Any]:
        return {
            "peak": self.peak, "products": self.products, "curves": self.curves, "overhead": self.overhead,
            "unknown": sorted(self.unknown),
        }  # fmt: skip

    @staticmethod
    def from_json(content: Mapping[str, Any], dtype: torch.dtype | None) -> "Measured":
        return Measured(
            dtype, content["peak"], dict(content["products"]), dict(content["curves"]), content["overhead"],
            set(content["unknown"]),
        )  # fmt: skip


def _flops(call: Call) -> tuple[int, int]:
    """Forward and backward."""
    of_phase = {cost.phase: cost.flops for cost in costs.of(call)}
    forward, backward = of_phase.get(costs.FORWARD, 0), of_phase.get(costs.BACKWARD, 0)
    return (backward, 0) if call.is_backward else (forward, backward)  # what autograd calls is timed as it is


def curve(mix: str, seconds: float = 0.05) -> list[list[float]]:
    """Bytes of a pass and its GB/s, from 16 KiB to beyond the caches."""
    sizes = [1 << power for power in range(14, 27, 2)]
    points = [[float(size), size / streams.best_time(_pass(mix, size), seconds) / 1e9] for size in sizes]
    beyond = float(streams.stream(mix).bytes)
    return [point for point in points if point[0] < beyond] + [[beyond, streams.bandwidth(mix, 0.1)]]


def _pass(mix: str, size: int) -> Callable[[], object]:
    """Over so many bytes in all."""
    num_arrays = {"read": 1, "write": 3, "update": 2}[mix]  # in place, one array is read and written
    a, b, c = (torch.ones(max(1, size // num_arrays // 4), dtype=torch.float32, device="cpu") for _ in range(3))
    if mix == "read":
        return a.sum
    return partial(torch.add, b, c, alpha=0.5, out=a) if mix == "write" else partial(a.mul_, 1.0)


def interpolated(points: list[list[float]], size: float) -> float:
    """Between two sizes by the logarithms of size and rate; below the first and above the last that of these."""
    sizes = [point[0] for point in points]
    at = bisect.bisect(sizes, size)
    if at == 0 or at == len(points):
        # Below the smallest the time stays, that of a call: the rate falls with the size.
        return points[-1][1] if at else points[0][1] * size / sizes[0]
    (low, slow), (high, fast) = points[at - 1], points[at]
    share = math.log(size / low) / math.log(high / low)
    return slow * (fast / slow) ** share

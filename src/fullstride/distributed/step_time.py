"""How long a training step takes on n nodes, from what one node and one link were measured to take. No torch.

    sum of S bytes    2 (n - 1) L + 2 (n - 1) / n S / B: a ring, as gloo has it
    buckets           torch's: the parameters from the last to the first, a bucket closed when it has 25 MiB or more.
                      One is ready when backward has done its share, in proportion to the bytes. They are summed one
                      after the other, while backward goes on
    a step            forward + backward + rest + exposed + slowed + sync
    exposed           from the end of backward to that of the last sum
    slowed            what sums take from backward, where both are on the same cores: `work` of a link
    sync              a sum of six numbers: the loss, and whether anybody was told to stop
    local updates     no gradients; every H steps a sum of all weights in fp32 and the outer step, a step's share of it

L and B are what a fit to measured sums gives, not what a link is sold as: gloo asks before it sends, so a message takes
its latency more than once, and TCP has headers. Weak scaling: each node keeps its batch, so n of them do n times the
work of one in a step. Strong scaling: the batch of one is divided; the optimizer's work is not.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["weak", "strong"]

_BUCKET = 25 << 20  # bytes, as gradients.py has torch make them
_NUMBERS = 6 * 8  # bytes of the small sum in each step


@dataclass(frozen=True)
class Compute:
    """Seconds of a step of one process that trains alone. rest: optimizer, data, the loop; it does not shrink with the
    batch."""

    forward: float
    backward: float
    rest: float

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.rest

    def shared(self, nodes: int) -> "Compute":
        """Of a node that has one of so many parts of the batch."""
        return Compute(self.forward / nodes, self.backward / nodes, self.rest)


@dataclass(frozen=True)
class Link:
    """Of each node to its neighbour in the ring."""

    latency: float
    """L: seconds a message, whatever its size."""
    bandwidth: float
    """B: bytes a second."""
    work: float = 0.0
    """Seconds of the cores that compute, a byte sent: copies of TCP, and the sums. 0 if other cores do that."""

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and self.work >= 0):
            raise ValueError(f"expected a latency and work from 0 on and a bandwidth above 0, got {self}")


@dataclass(frozen=True)
class Sent:
    """By each node. local_steps 0: buckets of gradients in every step; else weights, every so many steps."""

    buckets: tuple[float, ...]
    """Bytes, in the order in which backward fills them."""
    local_steps: int = 0
    weights: float = 0.0
    """Bytes in fp32; of local updates."""
    outer: float = 0.0
    """Seconds of the outer step without its sum."""


@dataclass(frozen=True)
class Step:
    """Seconds of one step. average: of local updates, a step's share."""

    compute: float
    exposed: float = 0.0
    slowed: float = 0.0
    sync: float = 0.0
    average: float = 0.0

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed + self.slowed + self.sync + self.average


def buckets(parameters: Sequence[float]) -> tuple[float, ...]:
    """Bytes of torch's buckets, the first to be ready first; parameters: bytes of each, in the model's order."""
    found = [0.0]
    for size in reversed(parameters):
        found[-1] += size
        if found[-1] >= _BUCKET:
            found.append(0.0)
    return tuple(size for size in found if size)


def sent_bytes(size: float, nodes: int) -> float:
    """By each node, of a sum of so many bytes."""
    return 2 * (nodes - 1) / nodes * size


def allreduce(size: float, nodes: int, link: Link) -> float:
    """Seconds of a sum over all nodes."""
    return 2 * (nodes - 1) * link.latency + sent_bytes(size, nodes) / link.bandwidth


def predict(compute: Compute, sent: Sent, nodes: int, link: Link, kind: Kind = "weak") -> Step:
    if nodes < 1:
        raise ValueError(f"nodes: expected 1 or more, got {nodes}")
    own = compute.shared(nodes) if kind == "strong" else compute
    if nodes == 1:
        return Step(own.seconds)
    sync = allreduce(_NUMBERS, nodes, link)
    if sent.local_steps:
        average = (allreduce(sent.weights, nodes, link) + sent.outer) / sent.local_steps
        return Step(own.seconds, sync=sync, average=average)
    exposed, slowed = _overlap(own.backward, sent.buckets, nodes, link)
    return Step(own.seconds, exposed, slowed, sync)


def _overlap(backward: float, sizes: Sequence[float], nodes: int, link: Link) -> tuple[float, float]:
    """(exposed, slowed). While a sum is under way, backward has what that leaves of the cores."""
    slowed, under_way, whole = 0.0, 0.0, sum(sizes)  # under_way: seconds that sums of earlier buckets still take
    left = max(0.0, 1 - link.work * link.bandwidth)
    for size in sizes:  # up to where the next one is ready
        todo = backward * size / whole
        shared = min(under_way, todo / left if left else math.inf)  # seconds in which both go on
        slowed += shared * (1 - left)
        passed = todo + shared * (1 - left)
        under_way = max(0.0, under_way - passed) + allreduce(size, nodes, link)
    return under_way, slowed


def efficiency(compute: Compute, sent: Sent, nodes: int, link: Link, kind: Kind = "weak") -> float:
    """The share of n nodes that trains: n times the speed of one would be 1."""
    together = predict(compute, sent, nodes, link, kind).seconds
    return compute.seconds / (together if kind == "weak" else nodes * together)


def fit(measured: Iterable[tuple[float, float]], nodes: int = 2, work: float = 0.0) -> Link:
    """The link for which sums of (bytes, seconds) come out: the largest one exactly, as small ones may pass in a burst
    that a link allows, and of the latencies that each other one then asks for, their median, as some were disturbed."""
    pairs = sorted(measured)
    if nodes < 2 or len({size for size, _ in pairs}) < 2 or any(seconds <= 0 for _, seconds in pairs):
        raise ValueError(f"expected sums of two sizes or more over two nodes or more, got {len(pairs)} over {nodes}")
    messages, (largest, longest) = 2 * (nodes - 1), pairs[-1]
    lines = [
        (seconds * largest - longest * size) / (largest - size) for size, seconds in pairs if size < largest
    ]  # where the line through both crosses that of 0 bytes
    start = max(0.0, statistics.median(lines))
    if start >= longest:
        raise ValueError("expected sums that take longer the larger they are; measure larger ones")
    return Link(start / messages, sent_bytes(largest, nodes) / (longest - start), work)

"""`fullstride bench kernels`: every kernel against torch in the same process, and against the memory's own rate."""

import importlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...machine import streams
from ..measure import Goal, Spread, interleave
from . import rows
from .row import STREAMING_SHARE, Row

_BANDWIDTH = "bandwidth of the machine"  # the name of its side among those of a row


@dataclass(frozen=True)
class Peer(Goal):
    """What a kernel is measured against, and how many times faster the kernel is."""

    name: str
    milliseconds: float
    ratio: Spread
    target: float | None


@dataclass(frozen=True)
class Result:
    op: str
    case: str
    milliseconds: float
    peers: list[Peer]
    gigabytes_per_second: float | None
    mix: str | None  # the bandwidth that the share is of
    share_of_bandwidth: Spread | None
    target_share: float | None

    @property
    def met_share(self) -> bool | None:
        if self.target_share is None or self.share_of_bandwidth is None:
            return None
        return self.share_of_bandwidth.median >= self.target_share


def run(only: Collection[str] = (), rounds: int = 7, heap_kept: bool = False) -> Iterator[Result]:
    """Measures the rows of these ops, or of all, one after the other."""
    rows.check_names(only)
    for name in rows.ops():
        if not only or name in only:
            for row in importlib.import_module(f"{rows.__name__}.{name}").rows():
                yield measure(name, row, rounds, heap_kept=heap_kept)


def measure(op: str, row: Row, rounds: int = 7, seconds_per_turn: float = 0.05, heap_kept: bool = True) -> Result:
    """The pass that gives the machine's bandwidth takes its turn in every round: load by others meets it too.

    Only where the heap is kept is a share held against its target: otherwise the time of a kernel with new results is
    mostly that of the page faults.
    """
    sides = {"ours": row.ours, **row.peers}
    stream = streams.stream(row.mix) if row.bytes else None
    if stream:
        sides[_BANDWIDTH] = stream.run
    timings = interleave(sides, rounds, seconds_per_turn)
    ours = timings["ours"]
    peers = [
        Peer(name, timings[name].median * 1e3, ours.ratio_to(timings[name]), row.targets.get(name))
        for name in row.peers
    ]
    rate = share = None
    if stream and row.bytes:
        rate = row.bytes / ours.median / 1e9
        share = ours.ratio_to(timings[_BANDWIDTH], scale=row.bytes / stream.bytes)
    return Result(
        op=op,
        case=row.case,
        milliseconds=ours.median * 1e3,
        peers=peers,
        gigabytes_per_second=rate,
        mix=row.mix if share else None,
        share_of_bandwidth=share,
        target_share=STREAMING_SHARE if heap_kept and row.streaming else None,
    )

"""`fullstride bench kernels`: every kernel against torch in the same process, against its own portable variant, and
against what the machine reaches: the memory's rate, and that of products."""

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from ... import _native
from ...machine import streams
from ..measure import Goal, Spread, interleave
from . import rows
from .row import PORTABLE, STREAMING_SHARE, Row

_BANDWIDTH = "bandwidth of the machine"  # the name of its side among those of a row
MOST_PORTABLE = 20 * 10**9  # FLOPs of a call: four lanes take long for more


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
    gflops: float | None = None
    precision: str | None = None  # of these, and of the peak that the share is of
    share_of_peak: float | None = None  # of what square products by torch reach on this machine
    parameters_per_second: float | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # peer -> why

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
                yield measure(name, row, rounds, heap_kept=heap_kept, peaks=product_peaks() if row.flops else {})


@cache
def product_peaks() -> dict[str, float | None]:
    """GFLOP/s of square products by torch, by precision: measured once, where the first row asks for it."""
    from ..step.benchmark import measure_peaks

    as_it_was = _native.as_it_is()  # looking for them may change the variant
    try:
        return measure_peaks()
    finally:
        as_it_was()


def measure(
    op: str,
    row: Row,
    rounds: int = 7,
    seconds_per_turn: float = 0.05,
    heap_kept: bool = True,
    peaks: Mapping[str, float | None] | None = None,
) -> Result:
    """The pass that gives the machine's bandwidth takes its turn in every round: load by others meets it too.

    Only where the heap is kept is a share held against its target: otherwise the time of a kernel with new results is
    mostly that of the page faults.
    """
    peers, left_out = peers_of(row)
    sides = {"ours": row.ours, **peers}
    stream = streams.stream(row.mix) if row.bytes and row.mix else None
    if stream:
        sides[_BANDWIDTH] = stream.run
    # To change the variant takes longer than many a call: once for a turn, and outside of its time.
    timings = interleave(sides, rounds, seconds_per_turn, {PORTABLE: partial(_native.use_isa, PORTABLE)})
    ours = timings["ours"]
    share = None
    if stream and row.bytes:
        share = ours.ratio_to(timings[_BANDWIDTH], scale=row.bytes / stream.bytes)
    gflops, peak = _a_second(row.flops, ours.median, 1e9), (peaks or {}).get(row.precision)
    return Result(
        op=op,
        case=row.case,
        milliseconds=ours.median * 1e3,
        peers=[
            Peer(name, timings[name].median * 1e3, ours.ratio_to(timings[name]), row.targets.get(name))
            for name in peers
        ],
        gigabytes_per_second=_a_second(row.bytes, ours.median, 1e9),
        mix=row.mix if share else None,
        share_of_bandwidth=share,
        target_share=STREAMING_SHARE if heap_kept and row.streaming else None,
        gflops=gflops,
        precision=row.precision if gflops else None,
        share_of_peak=gflops / peak if gflops and peak else None,
        parameters_per_second=_a_second(row.parameters, ours.median),
        left_out=left_out,
    )


def peers_of(row: Row) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Those of the row and the portable variant, where there is another; and what is left out, and why."""
    peers, left_out = dict(row.peers), dict(row.left_out)
    if _native.isa() in (PORTABLE, "torch"):
        left_out.pop(PORTABLE, None)
    elif row.flops and row.flops > MOST_PORTABLE:
        left_out.setdefault(PORTABLE, f"more than {MOST_PORTABLE / 1e9:g} GFLOP a call")
    elif PORTABLE not in left_out:
        peers[PORTABLE] = row.ours
    return peers, left_out


def _a_second(amount: int | None, seconds: float, unit: float = 1.0) -> float | None:
    return amount / seconds / unit if amount else None

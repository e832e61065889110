"""`fullstride bench kernels`: every kernel against torch in the same process, and against the memory's own rate."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..machine import memory, probe
from . import rows as rows_package
from .measure import interleave
from .row import Row


@dataclass(frozen=True)
class Result:
    op: str
    case: str
    milliseconds: float
    peers: dict[str, dict[str, float]]  # peer -> milliseconds, ratio, lowest, highest, target
    gigabytes_per_second: float | None
    share_of_bandwidth: float | None


def ops() -> list[str]:
    """The ops that have rows, by the names of their files."""
    return sorted(module.name for module in pkgutil.iter_modules(rows_package.__path__))


def run(only: list[str] | None = None, rounds: int = 7) -> Iterator[Result]:
    """Measures the rows of these ops, or of all, one after the other."""
    names = ops()
    unknown = set(only or []) - set(names)
    if unknown:
        raise ValueError(f"no kernel rows named {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    memory.keep_heap()  # for both sides: otherwise each times the kernel's page faults and not the kernel
    for name in names:
        if not only or name in only:
            for row in importlib.import_module(f"{rows_package.__name__}.{name}").rows():
                yield measure(row, rounds)


def measure(row: Row, rounds: int = 7) -> Result:
    before = probe.bandwidth()
    timings = interleave({"ours": row.ours, **row.peers}, rounds)
    after = probe.bandwidth()
    ours = timings["ours"]
    rate = row.bytes / ours.median / 1e9 if row.bytes else None
    peers = {}
    for name in row.peers:
        ratio, lowest, highest = ours.ratio_to(timings[name])
        peers[name] = {
            "milliseconds": timings[name].median * 1e3, "ratio": ratio, "lowest": lowest, "highest": highest,
            **({"target": row.targets[name]} if name in row.targets else {}),
        }  # fmt: skip
    share = rate / ((before + after) / 2) if rate else None
    return Result(row.op, row.case, ours.median * 1e3, peers, rate, share)


def as_dict(result: Result) -> dict[str, object]:
    return asdict(result)

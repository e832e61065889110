"""The measured bandwidth of this machine, in GB/s.

There is no one bandwidth. One core of a Zen 4 server, arrays beyond the cache, each byte counted once that the program
reads or writes: reading alone gives 29 GB/s, reading two arrays and writing a third 28, scaling one in place 49: the
lines written are those that were read, and leave while others arrive. A kernel that writes elsewhere is not at fault
for missing the rate of one that works in place, so each is held against the mix that is its own:

    read    sum of an array                     a reduction: gradient norm
    write   a = b + s * c, into another array   most element-wise kernels and norms
    update  a = s * a, in place                 optimizers, accumulation

Each is the best of our kernel (csrc/kernels/stream.cc) and of torch's operation for the same, so that a slow probe of
our own cannot flatter the kernels measured against it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from .. import _native
from . import cpu

_ARRAYS = {"read": 1, "write": 3, "update": 1}
MIXES = tuple(_ARRAYS)
_DEFAULT_CACHE = 32 << 20  # bytes, where the machine does not tell
_SHARE_OF_MEMORY = 8  # all buffers together take at most one part in so many


@dataclass(frozen=True)
class Stream:
    """One pass over arrays beyond the last-level cache."""

    run: Callable[[], object]
    bytes: int  # read and written, each once


def bandwidth(mix: str = "update", seconds: float = 0.3) -> float:
    """GB/s of a mix, the best of short passes: the figure that shares of bandwidth refer to."""
    passes = stream(mix)
    return passes.bytes / best_time(passes.run, seconds) / 1e9


@cache
def stream(mix: str) -> Stream:
    """The pass that the rate of a mix is measured by. Its buffers are kept, so that no call meets a new page."""
    if mix not in MIXES:
        raise ValueError(f"no mix {mix!r} of reads and writes; there are: {', '.join(MIXES)}")
    candidates = _candidates(mix, [_buffer(i) for i in range(_ARRAYS[mix])])
    best = [float("inf")] * len(candidates)
    for _ in range(8):  # in turns: what else runs here then meets both
        best = [min(seconds, _once(candidate.run)) for seconds, candidate in zip(best, candidates, strict=True)]
    return candidates[best.index(min(best))]


def _candidates(mix: str, buffers: Sequence[Tensor]) -> list[Stream]:
    a, *others = buffers
    n, size, pa = a.numel(), a.numel() * a.element_size(), a.data_ptr()
    kernels, native = _native.kernels, _native.available()
    if mix == "read":
        total = torch.empty(1)
        runs: list[Callable[[], object]] = [a.sum]
        if native:
            runs.append(lambda: kernels.stream_read(pa, n, total.data_ptr()))
        return [Stream(run, size) for run in runs]
    if mix == "write":
        b, c = others
        pb, pc = b.data_ptr(), c.data_ptr()
        runs = [lambda: torch.add(b, c, alpha=0.5, out=a)]
        if native:
            runs.append(lambda: kernels.stream_triad(pa, pb, pc, 0.5, n))
        return [Stream(run, 3 * size) for run in runs]
    runs = [lambda: a.mul_(1.0)]
    if native:
        runs.append(lambda: kernels.stream_scale(pa, 1.0, n))
    return [Stream(run, 2 * size) for run in runs]


@cache
def _buffer(number: int) -> Tensor:
    """One of three arrays, four times the last-level cache: what one pass leaves there is of little use to the next."""
    machine = cpu.describe()
    size = 4 * (machine.last_level_bytes or _DEFAULT_CACHE)
    memory = min((x for x in (machine.memory_bytes, machine.memory_limit_bytes) if x), default=None)
    if memory is not None:
        size = min(size, memory // _SHARE_OF_MEMORY // 3)
    return torch.ones(size // 4, dtype=torch.float32, device="cpu")


def best_time(run: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls that fit into `seconds`, three at least, after one to warm up."""
    run()
    deadline = time.perf_counter() + seconds
    best, calls = float("inf"), 0
    while calls < 3 or time.perf_counter() < deadline:
        best = min(best, _once(run))
        calls += 1
    return best


def _once(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start

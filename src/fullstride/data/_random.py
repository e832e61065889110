"""Random bits as a function of counters, for a whole batch at once and for no two batches differently.

numpy's generators give streams, of which a sample's place would depend on its batch; one generator a sample takes
longer than the sample. The mixing is that of csrc/simd/random.h: splitmix64, chained over the counters.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_MASK64 = 0xFFFFFFFFFFFFFFFF


def bits(seed: int, stream: int, *counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits for each place of the counters, which are arrays of one shape. `stream` tells uses of a seed apart."""
    key = np.full(1, _mix(_mix(seed & _MASK64) + stream & _MASK64), np.uint64)  # arrays wrap, numpy's scalars warn
    for counter in counters:
        key = mix64(key + counter.astype(np.uint64))
    return key


def uniform(seed: int, stream: int, count: int, *counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """(..., count) numbers from 0 to below 1 for each place of the counters."""
    key: NDArray[np.uint64] = np.add(bits(seed, stream, *counters)[..., None], np.arange(count, dtype=np.uint64))
    return (mix64(key) >> np.uint64(11)) * 2.0**-53


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def stream_of(seed: int, stream: int, *counters: int) -> Iterator[float]:
    """uniform() for one place, one number after the other and without end, by integers of Python.

    For a few numbers that is faster than arrays are: 9 of them took 4 us instead of 20 (one core of Zen 5).
    """
    key = _mix(_mix(seed & _MASK64) + stream & _MASK64)
    for counter in counters:
        key = _mix(key + int(counter) & _MASK64)  # numpy's own would warn
    while True:
        yield (_mix(key) >> 11) * 2.0**-53
        key = key + 1 & _MASK64


def _mix(x: int) -> int:
    """mix64 of one number."""
    x = x + 0x9E3779B97F4A7C15 & _MASK64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK64
    return x ^ x >> 31

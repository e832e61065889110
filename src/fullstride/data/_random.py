"""Random bits as a function of counters, for a whole batch at once and for no two batches differently.

numpy's generators give streams, of which a sample's place would depend on its batch; one generator a sample takes
longer than the sample. The mixing is that of csrc/simd/random.h: splitmix64, chained over the counters.
"""

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


def _mix(x: int) -> int:
    return int(mix64(np.full(1, x, np.uint64))[0])

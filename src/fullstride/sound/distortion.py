"""Mel-cepstral distortion (Kubichek 1993): how far two sounds are apart, in dB, whatever their tempo.

    c_k  = 2/80 sum_n L_n cos(pi k (n + 1/2) / 80),  k = 1 ... 13,  L the log-mels (natural logarithm) of a frame
    d    = 10 / ln 10  sqrt(2 sum_k (c_k - c'_k)^2)
    MCD  = the mean of d along the path of dynamic time warping with the least sum, by steps (1, 0), (0, 1), (1, 1)

With 2/80, L_n = c_0 / 2 + sum_k c_k cos(...), so d is the RMS difference of both mel spectra in dB (20 log10), of what
13 cepstra tell of them; c_0, which is loudness, is left out. An orthonormal DCT gives sqrt(80 / 2) = 6.3 times that.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

NUM_CEPSTRA = 13


def mel_cepstral_distortion(mel: Tensor, other: Tensor) -> float:
    """dB between log-mels (T, 80) and (U, 80)."""
    costs = distances(cepstra(mel), cepstra(other))
    return float(costs[warp(costs)].mean())


def cepstra(mel: Tensor) -> NDArray[np.float64]:
    """Log-mels (T, bins) to c_1 ... c_13 (T, 13)."""
    if mel.dim() != 2 or not len(mel) or mel.shape[1] <= NUM_CEPSTRA:
        raise ValueError(f"expected log-mels (T, 80) with 1 <= T, got {tuple(mel.shape)}; drop empty sentences")
    values = mel.detach().double().numpy()
    if not np.isfinite(values).all():
        raise ValueError("expected finite log-mels, got NaN or infinity; look at the network they came from")
    product: NDArray[np.float64] = values @ _cosines(mel.shape[1])
    return product


def distances(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cepstra (T, 13) and (U, 13) to dB (T, U)."""
    total = np.zeros((len(left), len(right)))
    for a, b in zip(left.T, right.T, strict=True):  # not by a^2 - 2 a b + b^2: equal frames are to be 0 apart
        total += np.subtract.outer(a, b) ** 2
    found: NDArray[np.float64] = 10.0 / math.log(10.0) * np.sqrt(2.0 * total)
    return found


def warp(costs: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The cheapest path through costs (T, U) from corner to corner, as rows and columns; at a tie the diagonal one.

    Cells of an anti-diagonal depend on the two before it alone, so that each is one vector operation. Diagonals lie by
    row: place i + 1 is row i, and place 0 is outside.
    """
    num_rows, num_columns = costs.shape
    flat = np.ascontiguousarray(costs).reshape(-1)
    before, last = np.full(num_rows + 1, np.inf), np.full(num_rows + 1, np.inf)
    before[0] = 0.0  # from where the first cell is entered
    moves = np.zeros((num_rows, num_columns), dtype=np.int8)
    for diagonal in range(num_rows + num_columns - 1):
        low, high = max(0, diagonal - num_columns + 1), min(num_rows - 1, diagonal)
        cells = low * num_columns + diagonal - low + np.arange(high - low + 1) * (num_columns - 1)
        ways = np.stack([before[low : high + 1], last[low : high + 1], last[low + 1 : high + 2]])
        chosen = ways.argmin(axis=0)
        moves.reshape(-1)[cells] = chosen
        now = np.full(num_rows + 1, np.inf)
        now[low + 1 : high + 2] = ways[chosen, np.arange(len(chosen))] + flat[cells]
        before, last = last, now
    return _traced(moves)


def _traced(moves: NDArray[np.int8]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """From the last cell back: 0 came along the diagonal, 1 from the row before, 2 from the column before."""
    row, column = moves.shape[0] - 1, moves.shape[1] - 1
    path = [(row, column)]
    while row or column:
        move = moves[row, column]
        row, column = row - int(move != 2), column - int(move != 1)
        path.append((row, column))
    rows, columns = np.array(path[::-1], dtype=np.intp).T
    return rows, columns


@functools.cache
def _cosines(bins: int) -> NDArray[np.float64]:
    places = np.arange(bins)[:, None] + 0.5
    found: NDArray[np.float64] = 2.0 / bins * np.cos(math.pi / bins * places * np.arange(1, NUM_CEPSTRA + 1))
    return found

"""Fits the polynomials of csrc/simd/functions.h and csrc/kernels/activations.h; prints coefficients, lowest first.

    python benchmarks/fit_polynomials.py

Weighted least squares on Chebyshev nodes with Lawson's iteration: nodes with a large error gain weight until all
peaks of the error are alike, which is the minimax polynomial. The error printed is that of the whole function,
relative to it unless said otherwise, with the coefficients rounded to fp32 and evaluated exactly; 2^-24 = 6.0e-08
is half a unit in the last place.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev, polynomial

Function = Callable[[np.ndarray], np.ndarray]


def fit(f: Function, low: float, high: float, degree: int, weight: Function, iterations: int = 100) -> np.ndarray:
    """Coefficients of the polynomial p of this degree that makes the largest |p - f| * weight on [low, high] least."""
    num_nodes = 4000
    t = np.cos(np.pi * (np.arange(num_nodes) + 0.5) / num_nodes)
    x = (low + high) / 2 + (high - low) / 2 * t
    basis, target, scale = chebyshev.chebvander(t, degree), f(x), weight(x)
    share = np.full(num_nodes, 1 / num_nodes)
    for _ in range(iterations):
        rows = np.sqrt(share) * scale
        solution = np.linalg.lstsq(basis * rows[:, None], target * rows, rcond=None)[0]
        share *= np.abs(basis @ solution - target) * scale + 1e-30
        share /= share.sum()
    powers = np.zeros(1)
    to_t = np.array([-(low + high) / (high - low), 2 / (high - low)])
    for coefficient in chebyshev.cheb2poly(solution)[::-1]:
        powers = polynomial.polyadd(polynomial.polymul(powers, to_t), [coefficient])
    return powers


def show(name: str, f: Function, low: float, high: float, degree: int, weight: Function) -> None:
    rounded = fit(f, low, high, degree, weight).astype(np.float32).astype(np.float64)
    x = np.linspace(low, high, 200_001)
    error = np.max(np.abs(polynomial.polyval(x, rounded) - f(x)) * weight(x))
    print(f"{name}: error {error:.2e}\n    " + ", ".join(f"{c:.9e}f" for c in rounded))


def series(closed: Function, start: list[float], below: float) -> Function:
    """closed(x), and the polynomial `start` near zero, where the closed form cancels."""

    def f(x: np.ndarray) -> np.ndarray:
        near = np.abs(x) < below
        return np.where(near, polynomial.polyval(x, start), closed(np.where(near, below, x)))

    return f


def main() -> None:
    root = np.sqrt
    erfc = np.vectorize(math.erfc)

    half_ln2 = math.log(2) / 2 * 1.0001  # a little beyond the interval, for the rounding of the reduction
    exp = series(lambda r: (np.expm1(r) - r) / r**2, [1 / 2, 1 / 6, 1 / 24, 1 / 120], 1e-3)
    show("exp: (e^r - 1 - r) / r^2", exp, -half_ln2, half_ln2, 4, lambda r: r**2 / np.exp(r))

    log = series(lambda f: (np.log1p(f) - f + f**2 / 2) / f**3, [1 / 3, -1 / 4, 1 / 5, -1 / 6], 1e-3)
    log_weight = series(lambda f: np.abs(f**3 / np.log1p(f)), [0, 0, 1], 1e-6)
    show("log: (log(1 + f) - f + f^2 / 2) / f^3", log, root(0.5) - 1, root(2) - 1, 8, log_weight)

    tanh = series(lambda u: (np.tanh(root(u)) / root(u) - 1) / u, [-1 / 3, 2 / 15, -17 / 315], 1e-4)
    show("tanh: (tanh(x) / x - 1) / x^2 in x^2", tanh, 0, 0.625**2, 4, lambda u: u)

    c = 2 / math.sqrt(math.pi)
    erf = series(lambda u: (1 - erfc(root(u))) / root(u) - 1, [c - 1, -c / 3, c / 10, -c / 42], 1e-4)
    show("erf: erf(x) / x - 1 in x^2", erf, 0, 0.9217**2, 6, lambda u: 1 / (1 + erf(u)))
    show("erf: log(erfc(x)), error of 1 - e^p absolute", lambda x: np.log(erfc(x)), 0.92, 4.0, 8, erfc)

    quarter = (math.pi / 4 + 0.02) ** 2  # beyond pi / 4: x * 2 / pi is rounded before it is rounded to an integer
    sin = series(lambda u: (np.sin(root(u)) / root(u) - 1) / u, [-1 / 6, 1 / 120, -1 / 5040], 1e-3)
    show("sin: (sin(r) / r - 1) / r^2 in r^2", sin, 0, quarter, 3, lambda u: u)
    cos = series(lambda u: (np.cos(root(u)) - 1 + u / 2) / u**2, [1 / 24, -1 / 720, 1 / 40320], 1e-2)
    show("cos: (cos(r) - 1 + r^2 / 2) / r^4 in r^2", cos, 0, quarter, 2, lambda u: u**2 / np.cos(root(u)))

    # activations.h
    short = series(lambda r: np.expm1(r) / r, [1, 1 / 2, 1 / 6, 1 / 24], 1e-4)
    show("exp_minus: (e^r - 1) / r", short, -half_ln2, half_ln2, 4, lambda r: np.abs(r) / np.exp(r))

    def tail(t: np.ndarray) -> np.ndarray:
        x = (1 / t - 1) / 0.3
        return erfc(x / root(2)) * np.exp(x**2 / 2) / 2 / t

    def tail_weight(t: np.ndarray) -> np.ndarray:  # relative error, a tenth of it far out, where the tail is tiny
        return (0.9 * np.exp(-(((1 / t - 1) / 0.3) ** 2) / 2) + 0.1) / tail(t)

    show("gelu: Phi(-x) e^(x^2 / 2) / t in t = 1 / (1 + 0.3 x)", tail, 1 / (1 + 0.3 * 13.3), 1, 7, tail_weight)


if __name__ == "__main__":
    main()

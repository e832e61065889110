"""Where threads begin to pay, and where LayerNorm's two-pass statistics do.

    python -m benchmarks.take thresholds && make performance    # writes benchmarks/thresholds.md

For each kernel: sizes from 2^9 to 2^20 elements, one thread against all of them in turns, median of the ratios. The
break-even is the smallest size from which on all threads win by 5 %. n / grain threads are used, so a kernel's grain is
half of it on two cores. The constants in csrc are these figures, rounded to a power of two.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullstride import _native
from fullstride.bench.conditions import conditions
from fullstride.bench.measure import interleave
from fullstride.ops import convert, glu, grads, vector_math
from fullstride.ops._optimizer import ParamList, make_slot
from fullstride.ops.adam import AdamGroup, adam_step
from fullstride.ops.bias_act import bias_act
from fullstride.ops.cross_entropy import cross_entropy
from fullstride.ops.dropout import dropout
from fullstride.ops.embedding import embedding
from fullstride.ops.layer_norm import layer_norm
from fullstride.ops.rms_norm import rms_norm
from fullstride.ops.rope import rope, rope_tables
from fullstride.ops.softmax import softmax

from .tables import thresholds_of

ONE_THREAD, ALL_THREADS = 1 << 40, 1
SIZES = [1 << k for k in range(9, 21)]
COLS = 256


def calls(n: int) -> dict[str, Callable[[], object]]:
    """A call of each kernel on n elements, in rows of COLS where it has rows; bf16 where it takes it."""
    x = torch.randn(n // COLS, COLS).bfloat16()
    wide, rows = x.float(), x.shape[0]
    heads = x.view(1, rows, COLS // 64, 64)
    return {
        "adam (fp32)": _adam(wide.flatten()),
        "bias_act": partial(bias_act, x, x[0], "gelu"),
        "convert": partial(convert.to_bf16, wide),
        "cross_entropy": partial(cross_entropy, x, torch.zeros(rows, dtype=torch.int64)),
        "dropout": partial(dropout, x, 0.1, 1),
        "embedding": partial(embedding, torch.arange(rows), x),
        "glu": partial(glu.swiglu, x, x),
        "grads (norm)": partial(grads.grad_norm, [x]),
        "layer_norm": partial(layer_norm, x),
        "rms_norm": partial(rms_norm, x),
        "rope": partial(rope, heads, *rope_tables(rows, 64)),
        "softmax": partial(softmax, x),
        "vector_math (exp)": partial(vector_math.exp, x),
    }


def _adam(weight: Tensor) -> Callable[[], object]:
    tensors, groups = ParamList([make_slot(weight.clone())]), [AdamGroup()]
    return partial(adam_step, tensors, [weight], groups)


def with_grain(call: Callable[[], object], grain: int) -> Callable[[], object]:
    def run() -> None:
        _native.library().fs_set_grain(grain)
        call()

    return run


def speedups(sizes: list[int]) -> dict[str, list[float]]:
    """How much faster all threads are than one, for each kernel and size."""
    found: dict[str, list[float]] = {}
    for n in sizes:
        for name, call in calls(n).items():
            sides = {"one": with_grain(call, ONE_THREAD), "all": with_grain(call, ALL_THREADS)}
            timings = interleave(sides, rounds=21, seconds_per_turn=0.002)
            found.setdefault(name, []).append(timings["all"].ratio_to(timings["one"])[0])
    _native.library().fs_set_grain(0)
    return found


def break_even(sizes: list[int], ratios: list[float]) -> int | None:
    """The smallest size from which on the ratio stays above 1.05."""
    winning = None
    for size, ratio in zip(reversed(sizes), reversed(ratios), strict=True):
        if ratio < 1.05:
            break
        winning = size
    return winning


def welford_against_two_pass(cols: int) -> float:
    """How much faster the two-pass statistics are than Welford's pass on narrow rows, on one thread."""
    x = torch.randn(4096 // cols, cols).bfloat16()

    def side(limit: int) -> Callable[[], object]:
        def run() -> None:
            _native.library().fs_set_welford_cols(limit)
            layer_norm(x)

        return run

    timings = interleave({"welford": side(1 << 30), "two-pass": side(0)}, rounds=51, seconds_per_turn=0.0005)
    _native.library().fs_set_welford_cols(-1)
    return timings["two-pass"].ratio_to(timings["welford"])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="From how many elements on threads help.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"conditions": conditions(), "sizes": SIZES, "kernels": [], "spread": None}
    with torch.no_grad():
        for name, ratios in speedups(SIZES).items():
            even = break_even(SIZES, ratios)
            grain = even and even // torch.get_num_threads()
            found["kernels"].append({"kernel": name, "ratios": ratios, "break_even": even, "grain": grain})
        torch.set_num_threads(1)
        columns = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 32]
        found["layer_norm"] = {"columns": columns, "ratios": [welford_against_two_pass(cols) for cols in columns]}
    print("\n".join(thresholds_of(found)))
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

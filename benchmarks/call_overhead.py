"""What a call from Python costs before any work is done: ops on a tensor so small that the kernel itself takes next to
nothing, in microseconds, median [quartiles] of rounds in which all take turns.

    python benchmarks/call_overhead.py

The bare kernel call is to stay under 5 microseconds. One thread: the kernels would use no more on so small a tensor.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from fullstride import _native
from fullstride.bench.conditions import as_text, conditions
from fullstride.bench.measure import interleave
from fullstride.ops.layer_norm import layer_norm
from fullstride.ops.rms_norm import rms_norm

ROWS, COLS = 1, 16
BARE_LIMIT = 5.0  # microseconds

Case = tuple[str, Callable[[], object]]


def bare() -> Iterator[Case]:
    """The kernel by ctypes, with addresses at hand, and with their lookup as the ops do it."""
    x, y, weight, bias = torch.ones(ROWS, COLS), torch.ones(ROWS, COLS), torch.ones(COLS), torch.ones(COLS)
    statistics = torch.ones(2, ROWS)
    kernels = _native.kernels
    scale, norm = kernels.stream_scale, kernels.layer_norm_forward
    px, py, pw, pb, ps = (t.data_ptr() for t in (x, y, weight, bias, statistics))
    yield "bare: stream_scale, 3 arguments", lambda: scale(px, 1.0, COLS)
    yield "bare: layer_norm_forward, 13 arguments", lambda: norm(
        px, None, pw, pb, py, px, ps, ps + 4 * ROWS, ROWS, COLS, 1e-5, 0, 0
    )
    yield "bare: the same with 6 calls of data_ptr", lambda: kernels.layer_norm_forward(
        x.data_ptr(), None, weight.data_ptr(), bias.data_ptr(), y.data_ptr(), x.data_ptr(),
        statistics.data_ptr(), ps + 4 * ROWS, ROWS, COLS, 1e-5, 0, 0,
    )  # fmt: skip


def ops() -> Iterator[Case]:
    """The public ops and torch's own, forward only: without a gradient to record, and with one."""
    weight, bias = torch.ones(COLS), torch.ones(COLS)
    for grad in (False, True):
        x = torch.ones(ROWS, COLS, requires_grad=grad)
        how = "with grad" if grad else "no grad"
        yield f"layer_norm, {how}", partial(layer_norm, x, weight, bias)
        yield f"torch layer_norm, {how}", partial(F.layer_norm, x, (COLS,), weight, bias)
        yield f"rms_norm, {how}", partial(rms_norm, x, weight)
        yield f"torch rms_norm, {how}", partial(F.rms_norm, x, (COLS,), weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=301)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{as_text(conditions())}\n")
    cases = dict(ops()) if not _native.available() else dict([*bare(), *ops()])
    # Turns far shorter than a time slice: most of them are then free of other processes.
    for name, timing in interleave(cases, options.rounds, seconds_per_turn=0.0003).items():
        low, median, high = statistics.quantiles([seconds * 1e6 for seconds in timing.seconds], n=4)
        verdict = ("  over the limit" if median > BARE_LIMIT else "  ok") if name.startswith("bare") else ""
        print(f"{name:<42} {median:6.2f} us [{low:.2f}..{high:.2f}]{verdict}")


if __name__ == "__main__":
    main()

"""What stands in a roofline: FLOP a byte and GFLOP/s of steps and products, the share of bandwidth of other kernels.

Bytes are counted, not measured, and are the least there can be, so a dot may lie too far right but not too far left:

    a step      of each parameter: its weight read in forward and in backward, its gradient written, read by clipping
                and by the optimizer, its weight and its two moments read and written; more micro-batches read the
                weight twice each, and read and write the sum of gradients; nothing of activations
    a product   each operand read and the result written once; a layer forward and backward is three of them
    logits      of the linear layer with the loss inside, input and weight and their gradients, of the rows that are not
                ignored; nothing of the logits, which a fused operation need not move
    attention   queries, keys, values and result in forward, and these and four gradients in backward
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import machine_tables, roofs
from .result_files import File, rows
from .roofs import Roofs
from .step_rows import OURS, STOCK_DEFAULT, newest_steps, side_if

_SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes


class Point(NamedTuple):
    name: str
    intensity: float  # FLOP a byte
    gflops: float
    precision: str


class Share(NamedTuple):
    """Of the bandwidth of the machine, by mix."""

    op: str
    share: float
    mix: str


class Content(NamedTuple):
    title: str
    roofs: Roofs
    steps: list[Point]
    stock: list[Point]
    kernels: list[Point]
    shares: list[Share]
    without: list[str]  # kernels that multiply and whose bytes nobody counted, with their cases


def content_of(files: list[File], machine: str) -> Content:
    own = {file.suite: file for file in files if file.machine == machine}
    steps, found = own.get("steps"), kernel_rows(own.get("kernels"), own.get("kernels_heap_kept"))
    kernels, without = kernel_points(found)
    title = machine_tables.title_of(files, machine)
    return Content(
        title, roofs.of(files, machine), step_points(steps), stock_points(steps), kernels, shares(found), without
    )


def file_name(machine: str) -> str:
    return f"roofline-{machine}.svg"


def has_picture(files: list[File], machine: str) -> bool:
    """Whether there is a roof and something under it."""
    found = content_of(files, machine)
    return bool(found.roofs.products and (found.steps or found.kernels))


def step_points(file: File | None, side: str = OURS) -> list[Point]:
    """Of the newest steps of each model: ours, or those of another side."""
    points = []
    for name, (_, row) in newest_steps(file).items():
        found = side_if(row, side)
        facts = found.get("facts") if found else None
        if found and facts and facts.get("gflop") and facts.get("parameters") and found.get("gflops"):
            moved = step_bytes(facts["parameters"], found["precision"], row["accumulate"])
            points.append(Point(name, 1e9 * facts["gflop"] / moved, found["gflops"], found["precision"]))
    return points


def stock_points(file: File | None) -> list[Point]:
    return step_points(file, STOCK_DEFAULT)


def step_bytes(parameters: int, precision: str, accumulate: int) -> int:
    """The least that a step with Adam and fp32 states moves."""
    weight = _SIZES[precision]
    gradient = weight if accumulate == 1 else 4  # several are summed in fp32
    reads = 2 * weight * accumulate
    gradients = gradient * (1 + 2 * (accumulate - 1)) + 2 * gradient
    update = 2 * 4 + 2 * 2 * 4  # the weight, in two halves where it is split, and two moments
    return parameters * (reads + gradients + update)


def kernel_rows(as_it_comes: File | None, heap_kept: File | None) -> list[dict[str, Any]]:
    """Of each op those with the heap kept, where there are any: without, page faults are what many wait for."""
    kept = [row for _, row in rows(heap_kept)]
    ops = {row["op"] for row in kept}
    return [*kept, *(row for _, row in rows(as_it_comes) if row["op"] not in ops)]


def kernel_points(found: list[dict[str, Any]]) -> tuple[list[Point], list[str]]:
    """(a point for each case of a kernel that multiplies, the cases whose bytes nobody counted)."""
    points, without = [], set()
    for row in (row for row in found if row.get("gflops")):
        milliseconds, rate = row["milliseconds"], row["gigabytes_per_second"]
        moved = operand_bytes(row["op"], row["case"]) or (rate and 1e6 * rate * milliseconds)
        if moved:
            intensity = 1e6 * row["gflops"] * milliseconds / moved
            points.append(Point(row["op"], intensity, row["gflops"], row.get("precision") or "fp32"))
        else:
            without.add(f"{row['op']} {row['case']}")
    return points, sorted(without)


def shares(found: list[dict[str, Any]]) -> list[Share]:
    """Of the kernels that wait for memory."""
    own = [(row, row["share_of_bandwidth"]) for row in found if row["share_of_bandwidth"]]
    return [Share(row["op"], share["median"], row["mix"]) for row, share in own]


# ---- bytes of products, by the sizes that a case names -------------------------------------------------------------


def _three(rows: int, features: int, out: int, weight: int | None = None) -> int:
    """Elements of the products of a layer, forward and backward: x W^T, g W, g^T x."""
    return 3 * (rows * features + (features * out if weight is None else weight) + rows * out)


def _without_logits(rows: int, features: int, classes: int, percent_ignored: int) -> int:
    """The same three products where the result and its gradient stay in the cache."""
    asked_for = rows - rows * percent_ignored // 100  # as many as the benchmark leaves a target
    return 3 * (asked_for * features + features * classes)


def _patches(batch: int, channels: int, height: int, width: int, filters: int, high: int, wide: int) -> int:
    features = channels * high * wide
    return _three(batch * (height // high) * (width // wide), features, filters)


# Op -> (the sizes in the name of its case, elements that must move)
_CASES: Mapping[str, tuple[str, Callable[..., int]]] = {
    "gemm": (r"(\d+) x (\d+) x (\d+)$", lambda m, k, n: m * k + k * n + m * n),
    "linear": (r"(\d+) x (\d+) x (\d+)$", _three),
    "linear_cross_entropy": (r"(\d+) x (\d+) x (\d+), (\d+)% ignored$", _without_logits),
    "attention": (r"(\d+) x (\d+) x (\d+) x (\d+)$", lambda *sizes: 12 * math.prod(sizes)),
    "contrastive_loss": (r"(\d+) images, (\d+) texts, (\d+) wide", lambda i, t, w: _three(i, w, t)),
    "conv1d": (
        r"(\d+) x (\d+), (\d+) to (\d+), (\d+) taps", lambda b, f, i, o, k: _three(b * f, i, o, weight=i * o * k),
    ),
    "patches": (r"(\d+) x (\d+) x (\d+) x (\d+), (\d+) of (\d+) x (\d+)", _patches),
}  # fmt: skip


def operand_bytes(op: str, case: str) -> int | None:
    """What the products of this case must move at least; None where the case does not tell."""
    pattern, elements = _CASES.get(op, ("(?!)", lambda: 0))
    match, precision = re.search(pattern, case), re.search(r"\b(fp32|bf16|fp16)\b", case)
    if match is None or precision is None:
        return None
    return _SIZES[precision[1]] * elements(*map(int, match.groups()))

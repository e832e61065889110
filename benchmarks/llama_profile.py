"""Where a training step of stories110M goes, part by part, and what the machine would need for each.

    python -m benchmarks.llama_profile [--batch 4] [--length 256] [--steps 3] [--precision auto] [--json FILE]

The prepared model is trained under torch's profiler, with every kernel of ours recorded by its name. Each recorded
operation belongs to one part by its own time, without that of operations inside it; what is left of the step is named
"Python, autograd, allocation", so the parts are all of it. What the machine needs: the operations of products and of
attention at the best rate that products of this precision reach here, or the bytes that a part cannot do without at
the bandwidth of the memory (fullstride.machine.streams). Tensors that are still in a cache can be faster than that.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fullstride
from fullstride import _native
from fullstride.backends import choosing, square_products
from fullstride.bench import conditions
from fullstride.bench.step import models as step_models
from fullstride.cli.arguments import positive
from fullstride.machine import streams

PRODUCTS, ATTENTION, OPTIMIZER = "products", "attention", "AdamW, clipping"
NORM, ROPE, GLU, LOSS, EMBEDDING = "RMSNorm, residual sums", "RoPE", "SwiGLU", "loss", "embedding"
OTHER, REST = "other sums and copies", "Python, autograd, allocation"
PARTS = (PRODUCTS, ATTENTION, NORM, ROPE, GLU, LOSS, EMBEDDING, OTHER, OPTIMIZER, REST)

_KERNEL = "kernel "  # before the names of ours
_KERNELS = {  # by the beginning of the name
    "gemm": PRODUCTS, "attention": ATTENTION, "rms_norm": NORM, "rope": ROPE, "glu": GLU, "cross_entropy": LOSS,
    "embedding": EMBEDDING, "adam": OPTIMIZER, "grad_": OPTIMIZER,
}  # fmt: skip
_MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::matmul", "aten::linear", "mkldnn::_linear_pointwise"}
# These touch no element: they make tensors and views.
_FREE = {
    "empty", "empty_strided", "empty_like", "new_empty", "view", "_unsafe_view", "reshape", "transpose", "t", "chunk",
    "permute", "slice", "as_strided", "detach", "expand", "unsqueeze", "squeeze", "select", "flatten", "movedim", "to",
    "alias", "unbind", "split", "narrow", "contiguous", "item", "resize_", "set_", "unflatten", "result_type",
    "is_nonzero",
}  # fmt: skip
_WARM_UP = 2  # steps


def part_of(name: str, ancestors: list[str]) -> str:
    """The part of a recorded operation, given those it is inside of."""
    around = " ".join(ancestors)
    if "Optimizer.step" in around or name.startswith("Optimizer.step"):
        return OPTIMIZER
    if name.startswith(_KERNEL):
        kernel = name.removeprefix(_KERNEL)
        own = next((part for start, part in _KERNELS.items() if kernel.startswith(start)), OTHER)
    elif name in _MATRIX_PRODUCTS:
        own = PRODUCTS
    elif name.startswith("aten::") and name.removeprefix("aten::") not in _FREE:
        own = OTHER
    else:
        return REST
    return ATTENTION if own in (PRODUCTS, OTHER) and "AttentionFunction" in around else own


@contextlib.contextmanager
def recorded_kernels() -> Iterator[None]:
    """While it lasts the profiler knows every kernel of ours."""
    _native.available()  # loads them
    before = dict(_native.kernels.__dict__)

    def call(name: str, kernel: Callable[..., None], *arguments: Any) -> None:
        with torch.profiler.record_function(_KERNEL + name):
            kernel(*arguments)

    _native.kernels.__dict__.update({name: partial(call, name, kernel) for name, kernel in before.items()})
    try:
        yield
    finally:
        _native.kernels.__dict__.update(before)


def profile(step: Callable[[int], object], num_steps: int) -> tuple[dict[str, float], float]:
    """Seconds of a step by part, all of PARTS, under the profiler; and those of a step without it, the median."""
    seconds = []
    for number in range(_WARM_UP + num_steps):
        began = time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - began)
    with recorded_kernels(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        began = time.perf_counter()
        for number in range(num_steps):
            step(_WARM_UP + num_steps + number)
        whole = (time.perf_counter() - began) / num_steps
    parts: Counter[str] = Counter()
    for event in profiler.events():
        ancestors, parent = [], event.cpu_parent
        while parent is not None:
            ancestors.append(parent.name)
            parent = parent.cpu_parent
        parts[part_of(event.name, ancestors)] += event.self_cpu_time_total / 1e6 / num_steps
    known = {part: parts[part] for part in PARTS if part != REST}
    return known | {REST: whole - sum(known.values())}, statistics.median(seconds[_WARM_UP:])


def needs(shape: dict[str, int], num_tokens: int, length: int, num_weights: int, item: int) -> dict[str, float]:
    """What no implementation can do without, by part: operations of PRODUCTS and ATTENTION, bytes of the others.

    item: bytes of an activation. Each tensor is read or written once; gradients and the optimizer's state are fp32.
    """
    width, hidden, layers, vocabulary = (shape[name] for name in ("width", "hidden", "layers", "vocabulary"))
    wide = num_tokens * width * item
    keys = wide * shape["kv_heads"] // shape["heads"]
    square = 2 * width * width + 2 * width * width * shape["kv_heads"] // shape["heads"]
    linear = layers * (square + 3 * width * hidden) + vocabulary * width
    return {
        PRODUCTS: 6.0 * linear * num_tokens,
        ATTENTION: 6.0 * length * width * layers * num_tokens,  # causal
        NORM: (2 * layers + 1) * 8.0 * wide,  # x, update -> sum, y; dy, dsum, sum -> dx
        ROPE: layers * 4.0 * (wide + keys),
        GLU: layers * 8.0 * num_tokens * hidden * item,  # gate, up -> y; dy, gate, up -> dgate, dup
        LOSS: 2.0 * num_tokens * vocabulary * item,  # logits -> dlogits
        EMBEDDING: 2.0 * wide + 3.0 * 4 * num_tokens * width,  # rows -> x; dx added to the rows of dweight
        OTHER: 0.0,
        OPTIMIZER: 8.0 * 4 * num_weights,  # gradient for the norm; gradient, weight, m, v -> weight, m, v
        REST: 0.0,
    }  # fmt: skip


def seconds_needed(needs: dict[str, float], gflops: float, bandwidths: dict[str, float]) -> dict[str, float]:
    rates = {PRODUCTS: gflops, ATTENTION: gflops, OPTIMIZER: bandwidths["update"]}
    return {part: amount / 1e9 / rates.get(part, bandwidths["write"]) for part, amount in needs.items()}


def markdown(parts: dict[str, float], needed: dict[str, float]) -> list[str]:
    whole = sum(parts.values())
    lines = ["| part | ms | share | what the machine needs |", "|---|---:|---:|---:|"]
    for part, seconds in sorted(parts.items(), key=lambda entry: -entry[1]):
        need = f"{1e3 * needed[part]:.1f}" if needed[part] else ""
        lines.append(f"| {part} | {1e3 * seconds:.1f} | {seconds / whole:.1%} | {need} |")
    return [*lines, f"| step | {1e3 * whole:.1f} | 100.0% | {1e3 * sum(needed.values()):.1f} |"]


def prepared(workload: step_models.Workload, precision: str) -> tuple[Any, Callable[[int], None]]:
    """The model, and what takes its step of a number."""
    torch.manual_seed(step_models.SEED)
    model = workload.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=workload.lr)
    model, optimizer = fullstride.prepare(model, optimizer, precision=precision, clip=step_models.Work.clip)

    def step(number: int) -> None:
        batch = workload.batch(torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        loss = workload.loss(model, *batch)
        loss.backward()
        optimizer.step()
        loss.item()

    return model, step


def main() -> None:
    parser = argparse.ArgumentParser(description="A training step of stories110M, part by part.")
    parser.add_argument("--batch", type=positive, default=4)
    parser.add_argument("--length", type=positive, default=256)
    parser.add_argument("--layers", type=positive, default=step_models.STORIES110M["layers"])
    parser.add_argument("--steps", type=positive, default=3, help="under the profiler, and as many without it")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shape = step_models.STORIES110M | {"layers": options.layers}
    facts = conditions.conditions() | {"heap": "kept by Fullstride"}
    workload = step_models.language(options.batch, options.length, shape)
    model, step = prepared(workload, options.precision)
    parts, bare = profile(step, options.steps)
    precision = fullstride.explain(model).precision
    # Of square products, and of those of a linear layer as Fullstride computes them: the better one.
    square, linear = square_products.rates(), choosing.choose(precision).peak(precision)
    gflops = max([rate for name, rate in square.items() if name.startswith(precision)] + [linear])
    bandwidths = {mix: streams.bandwidth(mix) for mix in ("write", "update")}
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    amounts = needs(shape, workload.num_units, options.length, num_weights, item=2 if precision == "bf16" else 4)
    needed = seconds_needed(amounts, gflops, bandwidths)
    print(conditions.as_text(facts))
    print(
        f"\nstories110M, {options.layers} layers, {options.batch} x {options.length} tokens, {precision}:"
        f" {1e3 * bare:.0f} ms a step, {1e3 * sum(parts.values()):.0f} under the profiler;"
        f" products reach {gflops:.0f} GFLOP/s, memory {bandwidths['write']:.1f} GB/s"
        f" ({bandwidths['update']:.1f} in place)\n"
    )
    print("\n".join(markdown(parts, needed)))
    if options.json:
        content = {
            "conditions": facts, "shape": shape, "batch": options.batch, "length": options.length,
            "precision": precision, "step_ms": 1e3 * bare, "profiled_step_ms": 1e3 * sum(parts.values()),
            "gflops": gflops, "bandwidths": bandwidths,
            "parts": {
                part: {"ms": 1e3 * own, "share": own / sum(parts.values()), "needs_ms": 1e3 * needed[part]}
                for part, own in parts.items()
            },
        }  # fmt: skip
        options.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()

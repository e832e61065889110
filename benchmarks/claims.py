"""Measures what earlier systems of this kind claimed and nobody measured, where no other suite does.

    python -m benchmarks.claims NAME [--rounds N] [--json FILE]

    fusion      bytes and time of a linear layer with its ReLU inside, and of the two one after the other
    layer_norm  GB/s of LayerNorm on few rows and on many
    step        a training step with weight gradients beside the rest and our Adam, and without either
    memory      what a process training in fp32 and bf16 holds, and with micro-batches added up
    training    recipe mlp-mnist with freezing, and with LAMB and Lookahead, against itself; `fullstride data mnist`

A figure is {unit, median, lowest, highest}; claim_tables.py shows them beside the claims.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import fullstride
from fullstride.bench import conditions
from fullstride.bench.measure import Timing, interleave
from fullstride.bench.step import models as step_models
from fullstride.cli.arguments import positive
from fullstride.machine import memory as machine_memory
from fullstride.ops import products
from fullstride.ops.layer_norm import layer_norm
from fullstride.ops.linear import linear, overlap_weight_grads

from .claim_runs import SEEDS, Row, figure, memory, row, training

FUSION_SHAPES = ((128, 4096, 4096), (1024, 768, 2048), (8192, 256, 256))  # rows, in, out
NORM_SHAPES = ((8, 768), (16, 768), (32, 768), (16384, 1024))


def _ratio(fast: Timing, slow: Timing) -> Row:
    return {"unit": "x", **fast.ratio_to(slow)._asdict()}


# ---- fusion --------------------------------------------------------------------------------------------------------


def fusion_bytes(num_rows: int, cols: int, out: int) -> tuple[int, int]:
    """What forward must move, in fp32, (fused, one after the other): x, W and b read and y written; and if ReLU comes
    after it, y read and the result written once more."""
    fused = 4 * (num_rows * cols + out * cols + out + num_rows * out)
    return fused, fused + 4 * 2 * num_rows * out


def fusion(rounds: int, shapes: Sequence[tuple[int, int, int]] = FUSION_SHAPES) -> list[Row]:
    """By our own product in both cases: those of others do not take a ReLU in."""
    before = products.backend(torch.float32)
    products.set_backend(torch.float32, "native")
    try:
        with torch.no_grad():
            return [_fusion(rounds, *shape) for shape in shapes]
    finally:
        products.set_backend(torch.float32, before)


def _fusion(rounds: int, num_rows: int, cols: int, out: int) -> Row:
    x, weight, bias = torch.randn(num_rows, cols), torch.randn(out, cols) / cols**0.5, torch.randn(out)
    sides: dict[str, Callable[[], Tensor]] = {
        "fused": lambda: linear(x, weight, bias, "relu"), "apart": lambda: F.relu(linear(x, weight, bias)),
    }  # fmt: skip
    timings = interleave(sides, rounds)
    less, more = fusion_bytes(num_rows, cols, out)
    return row(
        "fusion", f"{num_rows} x {cols} x {out}", bytes_saved=figure("%", [100 * (1 - less / more)]),
        times_as_fast=_ratio(timings["fused"], timings["apart"]),
    )  # fmt: skip


# ---- LayerNorm -----------------------------------------------------------------------------------------------------


def norms(rounds: int, shapes: Sequence[tuple[int, int]] = NORM_SHAPES) -> list[Row]:
    """Forward in fp32; bytes: the rows read and written once."""
    found = []
    for num_rows, cols in shapes:
        x, weight, bias = torch.randn(num_rows, cols), torch.randn(cols), torch.randn(cols)
        sides: dict[str, Callable[[], object]] = {
            "ours": partial(layer_norm, x, weight, bias), "torch": partial(F.layer_norm, x, (cols,), weight, bias),
        }  # fmt: skip
        with torch.no_grad():
            timings = interleave(sides, rounds)
        moved = 2 * x.numel() * x.element_size()
        found.append(row(
            "layer_norm", f"{num_rows} x {cols}",
            rate=figure("GB/s", [moved / seconds / 1e9 for seconds in timings["ours"].seconds]),
            times_as_fast_as_torch=_ratio(timings["ours"], timings["torch"]),
        ))  # fmt: skip
    return found


# ---- a step --------------------------------------------------------------------------------------------------------


def steps(rounds: int, workload: str = "mlp", seconds_per_turn: float = 1.0) -> list[Row]:
    """In fp32, where torch's AdamW takes the weights of a prepared model: both optimizers step the same model."""
    work = step_models.Work(workload, 1)
    model, _ = fullstride.prepare(work.build().train(), None, precision="fp32")
    weights = list(model.parameters())
    ours = fullstride.optim.AdamW(weights, lr=work.workload.lr, clip=work.clip)
    stock = torch.optim.AdamW(weights, lr=work.workload.lr)
    batches = [work.step(number)[0][0] for number in range(8)]
    number = 0

    def step(overlaps: bool, our_adam: bool) -> None:
        nonlocal number
        overlap_weight_grads(overlaps)
        number += 1
        work.loss(model, batches[number % len(batches)]).backward()
        if not our_adam:
            torch.nn.utils.clip_grad_norm_(weights, work.clip)
        optimizer = ours if our_adam else stock
        optimizer.step()
        optimizer.zero_grad()

    wishes = {"neither": (False, False), "overlap": (True, False), "adam": (False, True), "both": (True, True)}
    timings = interleave({name: partial(step, *wish) for name, wish in wishes.items()}, rounds, seconds_per_turn)
    overlap_weight_grads(False)
    fullstride.restore(model)
    plain = timings["neither"].seconds
    shorter = {
        name: figure("%", [100 * (1 - own / other) for own, other in zip(timings[name].seconds, plain, strict=True)])
        for name in wishes if name != "neither"
    }  # fmt: skip
    time = figure("ms", [1000 * seconds for seconds in plain])
    names = {"overlap": "shorter_by_overlap", "adam": "shorter_by_our_AdamW", "both": "shorter_by_both"}
    return [row("step", workload, **{names[name]: own for name, own in shorter.items()}, time_without=time)]


MEASURES: dict[str, Callable[[int], list[Row]]] = {
    "fusion": fusion, "layer_norm": norms, "step": steps, "memory": memory,
    "training": lambda rounds: training(SEEDS[:rounds] if rounds < len(SEEDS) else range(rounds)),
}  # fmt: skip
ROUNDS = {"fusion": 15, "layer_norm": 15, "step": 7, "memory": 3, "training": 3}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="claims", description="Measures what others claimed.")
    parser.add_argument("name", choices=list(MEASURES))
    parser.add_argument("--rounds", type=positive, help="for training: seeds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    facts = conditions.conditions(machine_memory.keep_heap())
    print(conditions.as_text(facts), flush=True)
    rounds = options.rounds or ROUNDS[options.name]
    rows = MEASURES[options.name](rounds)
    print("\n".join(json.dumps(own) for own in rows))
    if options.json:
        found = {"conditions": facts, "name": options.name, "rounds": rounds, "results": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

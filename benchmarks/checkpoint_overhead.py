"""What saving in the background costs training: steps of a 52M-parameter MLP with and without a saving under way, in
turns, and the copy that training waits for.

    python benchmarks/checkpoint_overhead.py [--folder DIR] [--rounds N] [--precision auto|fp32|bf16]

A step while a checkpoint is written is to take at most 5 % longer. A round is some steps alone, then as many as fit
into one saving; their medians are compared within the round. The folder should be on the disk that runs are kept on.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import fullstride
from fullstride.bench.conditions import as_text, conditions
from fullstride.bench.step import models as step_models
from fullstride.machine import memory, streams
from fullstride.train.checkpoints.flat_state import flatten
from fullstride.train.checkpoints.saver import Saver
from fullstride.train.checkpoints.store import Snapshot, Store

LIMIT = 0.05
MICRO_BATCH = 128


def make_step(precision: str, accumulate: int) -> tuple[Callable[[], None], Callable[[], Snapshot]]:
    """(one step, what a checkpoint of it holds)."""
    torch.manual_seed(0)
    model = step_models.build_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = fullstride.prepare(model, optimizer, precision=precision)
    make, generator = step_models.classes(MICRO_BATCH, 1000, 784), torch.Generator().manual_seed(0)
    batches: list[tuple[Tensor, Tensor]] = [make(generator) for _ in range(8)]
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        for i in range(accumulate):
            inputs, labels = batches[i % len(batches)]
            (step_models.classification_loss(model, inputs, labels) / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        num_steps += 1

    def snapshot() -> Snapshot:
        tensors, document = flatten(optimizer.state_dict())
        return Snapshot(num_steps, {"model": model.state_dict(), "optimizer": tensors}, {"optimizer": document})

    return step, snapshot


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="instead of the system's for temporary files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12, help="alone, in a round")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of 128 in a step")
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()

    step, snapshot = make_step(options.precision, options.accumulate)
    print(f"{as_text(conditions(memory.keep_heap()))}\n")
    for _ in range(5):
        step()
    alone, beside, copies, collects, durations = [], [], [], [], []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, Saver(Store(Path(folder))) as saver:
        first = timed(lambda: saver.submit(snapshot()))
        saver.wait()
        for _ in range(options.rounds):
            alone.append(statistics.median(timed(step) for _ in range(options.steps)))
            start = time.perf_counter()
            taken = snapshot()
            collects.append(time.perf_counter() - start)
            copies.append(timed(lambda taken=taken: saver.submit(taken)))  # type: ignore[misc]
            size = sum(t.numel() * t.element_size() for part in taken.tensors.values() for t in part.values())
            del taken
            during = []
            while saver.busy:
                seconds = timed(step)
                if saver.busy:  # to its end
                    during.append(seconds)
            durations.append(time.perf_counter() - start)
            saver.wait()
            if during:
                beside.append((alone[-1], statistics.median(during), len(during)))
    report(size, first, collects, copies, durations, alone, beside)


def report(
    size: int,
    first: float,
    collects: list[float],
    copies: list[float],
    durations: list[float],
    alone: list[float],
    beside: list[tuple[float, float, int]],
) -> None:
    def line(name: str, values: list[float], unit: str, scale: float = 1.0) -> None:
        low, high = min(values) * scale, max(values) * scale
        print(f"{name:<30} {statistics.median(values) * scale:8.1f} {unit} [{low:.1f}..{high:.1f}]")

    print(f"{'a checkpoint':<30} {size / 1e6:8.0f} MB")
    line("collecting the state", collects, "ms", 1e3)
    line("copying it", copies, "ms", 1e3)
    rate = 2 * size / min(copies) / 1e9
    print(f"{'read and written at best':<30} {rate:8.1f} GB/s; this machine's rate {streams.bandwidth('write'):.1f}")
    print(f"{'collecting and copying, first':<30} {first * 1e3:8.1f} ms")
    line("until it is saved, in training", durations, "s ")
    line("a step alone", alone, "ms", 1e3)
    if not beside:
        print("no step fitted into a saving: nothing to compare")
        return
    line("a step while saving", [during for _, during, _ in beside], "ms", 1e3)
    slower = [during / before - 1 for before, during, _ in beside]
    line(f"longer by ({sum(n for *_, n in beside)} steps)", slower, "% ", 1e2)
    print(f"limit {LIMIT:.0%}: {'ok' if statistics.median(slower) <= LIMIT else 'over the limit'}")


if __name__ == "__main__":
    main()

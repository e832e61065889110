"""What this machine reaches: GFLOP/s of square products by precision, and GB/s by mix of reads and writes.

    python -m benchmarks.machine [--rounds 7] [--json FILE]

The same rates as `fullstride info` shows, each taken in several rounds. They are the roofs of benchmarks/roofline.py.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fullstride.backends import square_products
from fullstride.bench import conditions
from fullstride.cli.arguments import positive
from fullstride.machine import cpu, streams


def measure(rounds: int) -> dict[str, Any]:
    """{gflops, gigabytes_per_second, caches, memory_bytes}; rates: {name: {median, lowest, highest}}."""
    products: dict[str, list[float]] = {}
    passes: dict[str, list[float]] = {mix: [] for mix in streams.MIXES}
    for _ in range(rounds):
        for name, rate in square_products.rates().items():
            products.setdefault(name, []).append(rate)
        for mix, rates in passes.items():
            rates.append(streams.bandwidth(mix))
    machine = cpu.describe()
    return {
        "rounds": rounds, "gflops": _spreads(products), "gigabytes_per_second": _spreads(passes),
        "last_level_bytes": machine.last_level_bytes, "memory_bytes": machine.memory_bytes,
    }  # fmt: skip


def _spreads(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"median": statistics.median(own), "lowest": min(own), "highest": max(own)} for name, own in rates.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="machine", description="What this machine reaches.")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    facts = conditions.conditions()
    print(conditions.as_text(facts), flush=True)
    found = measure(options.rounds)
    for unit, name in (("GFLOP/s", "gflops"), ("GB/s", "gigabytes_per_second")):
        for what, rate in found[name].items():
            print(f"{what:<12} {rate['median']:8.1f} {unit} [{rate['lowest']:.1f}..{rate['highest']:.1f}]")
    if options.json:
        options.json.write_text(json.dumps({"conditions": facts, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

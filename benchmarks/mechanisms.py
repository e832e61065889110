"""What each mechanism of rewriting/ earns: a training step with all of them and one with one left out, in turns.

    python -m benchmarks.mechanisms [--model MODEL ...] [--only NAME ...] [--rounds N] [--json FILE]

Each side is a process of its own (bench/step/side.py). A mechanism that earns 2 % of no model's step has to go. For
`overlap`, which is off by default, it is switched on: prepare() then still leaves it off where it does not pay.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fullstride.bench import conditions
from fullstride.bench.measure import Timing
from fullstride.bench.step.cases import Case
from fullstride.rewriting import MECHANISMS

from . import own_sides

MODELS = {"mlp": Case("mlp"), "llama": Case("llama", batch="4 x 256"), "bert": Case("bert"), "gpt2": Case("gpt2")}


def measure(case: Case, mechanism: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step on both sides, and how many times as fast the step is with the mechanism."""
    common: dict[str, Any] = {"overlap_weight_grads": True} if mechanism == "overlap" else {}
    options = {"all": common, f"without {mechanism}": common | {"without": [mechanism]}}
    sides, (full, less), steps = own_sides.in_turns(case, "auto", options, rounds)
    return {
        "model": case.title, "mechanism": mechanism, "precision": sides[0].facts["precision"],
        "steps_a_round": steps, "rounds": rounds,
        "all_ms": _milliseconds(full), "without_ms": _milliseconds(less), "gain": full.ratio_to(less)._asdict(),
        "largest_loss_difference": max(
            abs(a - b) / abs(a) for a, b in zip(sides[0].losses, sides[1].losses, strict=False)
        ),
    }  # fmt: skip


def _milliseconds(side: Timing) -> dict[str, float]:
    return {"median": 1000 * side.median, "lowest": 1000 * min(side.seconds), "highest": 1000 * max(side.seconds)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="mechanisms", description="What each mechanism earns.")
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--only", nargs="+", choices=list(MECHANISMS), default=list(MECHANISMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for model in options.model:
        for mechanism in options.only:
            row = measure(MODELS[model], mechanism, options.rounds)
            gain, less = row["gain"], row["without_ms"]
            print(
                f"{row['model']:<40} {mechanism:<15} {row['all_ms']['median']:8.1f} ms, without {less['median']:8.1f}:"
                f" {gain['median']:.3f}x [{gain['lowest']:.3f}..{gain['highest']:.3f}]",
                flush=True,
            )
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps({"conditions": conditions.conditions(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

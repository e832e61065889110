"""The most memory that a process holds after two steps of stories110M: ours, stock as it comes, stock in bf16.

    python -m benchmarks.llama_memory --json FILE

`fullstride bench step --model llama` tells it too, at the end of an hour of timing where bf16 is slow. Memory is not a
matter of time, so this may run on a machine that others use.
"""

import argparse
import contextlib
import json
from pathlib import Path

from fullstride.bench import conditions
from fullstride.bench.step import benchmark as step
from fullstride.bench.step.cases import CASES, STOCK_DEFAULT
from fullstride.bench.step.process import Side


def main() -> None:
    parser = argparse.ArgumentParser(prog="llama_memory", description="Peak memory of a training step, side by side.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    facts = conditions.conditions()
    print(conditions.as_text(facts), flush=True)
    found = {}
    for case in (case for case in CASES if case.model == "llama"):
        peaks = {}
        wishes = {f"fullstride {wish}": {"fullstride": wish} for wish in ("auto", "bf16")} | {STOCK_DEFAULT: {}}
        for name, settings in wishes.items():
            with contextlib.closing(Side(name, case.config(**settings))) as side:
                side.run(step.WARM_UP)
                peaks[name] = side.peaks
        memory = step.compare_memory(case, peaks)
        found[case.title] = {name: round(size / 2**20) for name, size in memory.peaks.items()}
        told = ", ".join(f"{name} {size} MiB" for name, size in found[case.title].items())
        print(f"{case.title}: held at most after {memory.num_steps} steps: {told} {memory.trouble}", flush=True)
        if options.json:
            options.json.write_text(json.dumps({"conditions": facts, "mib": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()

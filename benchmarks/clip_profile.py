"""Where a training step of recipe clip goes, by kind of operation: ours, stock PyTorch as it comes, and at its best.

    python -m benchmarks.clip_profile [--batch 12] [--rounds 3] [--steps 2] [--json FILE]

`base`, pictures of 224 x 224 and captions of 77 tokens, made from a seed. Each side is a process of its own (side.py of
`fullstride bench step`) and takes its turn; torch's profiler gives the time of each operation without those inside it.
Stock at its best is the fused AdamW, with autocast to bf16 where ours is bf16. Our linear layers have their bias and
GELU inside and our patch embedding is one of them, so these are products there. Profiled steps take a little longer
than others.
"""

import argparse
import contextlib
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from fullstride.bench import conditions
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT, Case
from fullstride.bench.step.process import Side, SideFailed
from fullstride.cli.arguments import positive

from . import tables

OURS = "fullstride auto"
_WARM_UP = 2  # steps
# The first that matches the name of an operation. What torch calls a function's backward ends with Backward.
_KINDS = {
    "attention": r"[aA]ttention|_flash_",
    "contrastive loss": r"ContrastiveLoss|log_softmax|LogSoftmax|nll_loss|NllLoss|CrossEntropy|cross_entropy",
    "patch embedding": r"[cC]onvolution|Patches|conv2d",
    "products": r"Linear|linear|mm$|addmm|Addmm|matmul",
    "layer norms": r"[lL]ayer_?[nN]orm",
    "GELU": r"[gG]elu|BiasAct",
    "embeddings": r"[eE]mbedding|index",
    "copies and sums": r"copy_|::(to$|_to_copy|add|sum|mul|div|cat|fill_|zero_|empty)|contiguous|clone|[cC]onvert"
    r"|(Add|Mul|Cat)Backward",
}
OPTIMIZER, REST = "optimizer and clipping", "all else"
KINDS = (*_KINDS, OPTIMIZER, REST)


def kind_of(operation: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, operation)), REST)


def profile(model: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Milliseconds of a step by kind, of each side and round; a side that dies says so instead."""
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        sides: list[Side] = []
        for name, settings in _settings().items():
            try:
                side = Side(name, Case(model).config(**settings(sides)))
                stack.callback(side.close)
                side.run(_WARM_UP)
                sides.append(side)
                found.append({"name": name, "precision": side.facts["precision"], "step_ms": [], "profiled_ms": [],
                              "kinds_ms": {kind: [] for kind in KINDS}})  # fmt: skip
            except SideFailed as error:
                found.append({"name": name, "failed": str(error)})
        for _ in range(rounds):
            for side in sides:
                row = next(row for row in found if row["name"] == side.name)
                row["step_ms"].append(1000 * statistics.median(side.run(steps)["seconds"]))
                found_ms = _by_kind(side.profile(steps))
                row["profiled_ms"].append(sum(found_ms.values()))
                for kind, ms in found_ms.items():
                    row["kinds_ms"][kind].append(ms)
                side.rest()
    return found


def _settings() -> dict[str, Any]:
    """What each side is told; ours stands first, and tells stock's best whether bf16 is fast here."""
    return {
        OURS: lambda sides: {"fullstride": "auto"},
        STOCK_DEFAULT: lambda sides: {},
        STOCK_BEST: lambda sides: {"fused": True, "autocast": bool(sides) and sides[0].facts["precision"] == "bf16"},
    }


def _by_kind(profiled: dict[str, Any]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for phase, name, share in profiled["by_phase"]:
        kind = kind_of(name) if phase in ("forward", "backward") else OPTIMIZER
        sums[kind] += share * profiled["milliseconds"]
    return {kind: sums[kind] for kind in KINDS}


def main() -> None:
    parser = argparse.ArgumentParser(description="A training step of recipe clip, by kind of operation.")
    parser.add_argument("--batch", type=positive, default=12, choices=(12, 64), help="pairs: 12 or 64")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=2, help="of each side in a round")
    parser.add_argument("--tiny", action="store_true", help="a model of a few weights, to try this program")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = "tiny-clip" if options.tiny else f"clip {options.batch}"
    content = {
        "conditions": conditions.conditions() | {"heap": "kept by Fullstride alone"}, "model": model,
        "rounds": options.rounds, "steps": options.steps, "sides": profile(model, options.rounds, options.steps),
    }  # fmt: skip
    print("\n".join(tables.clip_profile_of(content)))
    if options.json:
        options.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Islands against averages of gradients over a slow link: validation loss over steps, bytes sent and time, llama-char.

    python -m benchmarks.distributed.local_updates [--steps N] [--mbit RATE] [--json FILE]

Two hosts (network namespaces), one core each. Every side sees the same samples in the same number of steps. Time is
that of training steps, without evaluations.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.distributed import hosts

from fullstride.bench import conditions
from fullstride.run_folder.metrics import read

from .two_hosts import on_two

SIDES = {
    "gradients in fp32": ("--distributed.gradients", "fp32"),
    "gradients in bf16": ("--distributed.gradients", "bf16"),
    "islands, 10 steps": ("--distributed.local-steps", "10"),
    "islands, 50 steps": ("--distributed.local-steps", "50"),
    "islands, 250 steps": ("--distributed.local-steps", "250"),
}
_EVERY = 250  # steps from one evaluation, before which islands meet, to the next


def curve(pair: Sequence[hosts.Host], fields: Sequence[str], steps: int) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "fullstride", "train", "llama-char", "--steps", str(steps), "--evaluation.every", str(_EVERY),
            "--checkpoints.every", "0", "--samples.tokens", "0", "--logging.every", str(_EVERY), "--no-report",
            "--data.workers", "0", "--threads", "1", "--quiet", "--folder", f"{folder}/run", *fields,
        ]  # fmt: skip
        on_two(pair, ["-m", *words])
        rows = list(read(Path(folder) / "run"))
    sent, seconds, points = 0.0, 0.0, []
    trained = {row["step"]: row for row in rows if row["kind"] == "train"}
    for row in rows:
        if row["kind"] == "eval":
            own = trained[row["step"]]
            sent += own["ranks"][0]["sent_mb"]
            seconds += own["step_ms"] * _EVERY / 1000
            points.append({"step": row["step"], "loss": row["loss"], "sent_mb": sent, "seconds": seconds})
    return points


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="local_updates", description="Islands against averages of gradients.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--mbit", type=float, default=200, help="of the link, in millions of bits a second")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    content: dict[str, Any] = {"conditions": conditions.conditions(), "recipe": "llama-char", "steps": options.steps}
    content |= {"mbit": options.mbit, "results": []}
    with hosts.network(2) as pair:
        pair[0].shape(mbit=options.mbit)
        for side, fields in SIDES.items():
            points = curve(pair, fields, options.steps)
            content["results"].append({"side": side, "points": points})
            last = points[-1]
            told = f"loss {last['loss']:.4f} after {last['seconds']:.0f} s and {last['sent_mb']:,.0f} MB"
            print(f"{side:<20} {told}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

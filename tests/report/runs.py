"""Small runs, in memory and as folders, for the tests of the report."""

import json
import math
from pathlib import Path

from fullstride.report.run import Run

CONFIG = """\
recipe: mlp-mnist
steps: 40
clip: 1.0
evaluation:
  metric: accuracy
"""
MACHINE = {
    "cpu": {"model": "Test CPU 9000", "architecture": "x86_64"},
    "environment": {"threads": 2, "precision": "fp32", "kernels": "avx2", "python": "3.11.2"},
    "torch": {"version": "2.13.0"},
    "fullstride": {"version": "0.1.0", "commit": "0123abcd"},
    "energy": "unavailable: this system has no counters",
    "parameters": 52_000_000,
}
COMPARE = {
    "sides": [
        {
            "name": "fullstride auto", "precision": "fp32", "losses": [2.0, 1.0, None, 0.5], "peak_bytes": 1.2e9,
            "milliseconds": {"median": 150.0, "lowest": 149.0, "highest": 155.0}, "units_per_second": 853.0,
        },
        {
            "name": "stock default", "precision": "fp32", "losses": [2.0, 1.0, 0.7, 0.5], "peak_bytes": 1.5e9,
            "milliseconds": {"median": 450.0, "lowest": 440.0, "highest": 470.0}, "units_per_second": 284.0,
        },
    ],
    "ratios": [
        {"ours": "fullstride auto", "peer": "stock default", "ratio": {"median": 3.0, "lowest": 2.9, "highest": 3.1}}
    ],
    "turns": {"rounds": 7, "steps": 12, "seconds": 60.0}, "unit": "samples", "notes": [],
}  # fmt: skip


def train_row(step, attempt=1, seconds=None, **changes):
    row = {
        "kind": "train", "attempt": attempt, "step": step, "epoch": step / 30, "samples": 128 * step,
        "loss": 2.3 * math.exp(-step / 20), "lr": 1e-3, "grad_norm": 2.0, "skipped": 0,
        "seconds": 0.5 * step if seconds is None else seconds, "step_ms": 500.0, "per_second": 256.0,
        "gflops": 80.0, "share_of_peak": 0.8, "resident_mb": 1200.0, "joules": None,
        "time": {"data": 0.1, "forward": 0.7, "backward": 1.2, "optimizer": 0.4, "other": 0.1},
        "grad_norms": {"layers.0": 0.3, "layers.1": 1.9},
    }  # fmt: skip
    return row | changes


def eval_row(step, accuracy, best=True, **changes):
    row = {"kind": "eval", "attempt": 1, "step": step, "loss": 1.0 - accuracy, "accuracy": accuracy, "seconds": 0.3}
    return row | {"best": best} | changes


def event_row(step, event, **changes):
    return {"kind": "event", "attempt": 1, "step": step, "event": event} | changes


def rows():
    """40 steps, resumed after the 20th."""
    first = [train_row(step) for step in (5, 10, 15, 20)]
    second = [train_row(step, attempt=2, seconds=0.5 * (step - 20)) for step in (25, 30, 35, 40)]
    evals = [eval_row(20, 0.91), eval_row(40, 0.973, attempt=2)]
    events = [event_row(0, "start"), event_row(20, "start", attempt=2), event_row(40, "end", attempt=2, seconds=11.0)]
    return first + second + evals + events


def make_folder(path: Path, rows=(), config=CONFIG, machine=MACHINE, compare=None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text(config)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, content in (("machine.json", machine), ("compare.json", compare)):
        if content is not None:
            (path / name).write_text(json.dumps(content))
    return path


def make_run(rows=(), **changes) -> Run:
    kinds = ([row for row in rows if row["kind"] == kind] for kind in ("train", "eval", "event"))
    config = {"recipe": "mlp-mnist", "steps": 40, "clip": 1.0, "evaluation": {"metric": "accuracy"}}
    given = dict(zip(("train", "evals", "events"), kinds, strict=True))
    return Run(**{"config": config, "config_yaml": CONFIG, "machine": MACHINE} | given | changes)

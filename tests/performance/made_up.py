"""Small results and a small repository, for the tests of benchmarks/."""

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.result_files import File, part

CONDITIONS = {
    "cpu": "Some CPU", "usable_cores": 2, "threads": 2, "isa": "avx2", "torch": "2.13.0+cpu", "heap": "as it comes",
    "commit": "0123456789ab", "date": "2026-11-16 01:41:50 UTC", "load": 0.5,
}  # fmt: skip
DEFAULT = "stock default"


def side(name: str, *milliseconds: float, precision: str = "fp32") -> dict[str, Any]:
    return {
        "name": name, "precision": precision, "milliseconds": list(milliseconds), "peak_bytes": 100 << 20,
        "share_of_peak": 0.5, "gflops": 80.0,
        "facts": {"units": 128, "unit": "samples", "gflop": 8.0, "parameters": 10_000_000},
    }  # fmt: skip


def ratio(peer: str, peer_side: str, median: float, lowest: float, highest: float) -> dict[str, Any]:
    spread = {"median": median, "lowest": lowest, "highest": highest}
    return {"ours": "fullstride auto", "peer": peer, "peer_side": peer_side, "ratio": spread}


def step(model: str = "mlp", gain: float = 2.5, accumulate: int = 1) -> dict[str, Any]:
    """One row of suite steps; stock is at its best as it comes."""
    best = "stock at its best"
    return {
        "model": model, "batch": "", "accumulate": accumulate, "num_losses": 3,
        "sides": [side("fullstride auto", 101.0, 100.0, 130.0), side(DEFAULT, 250.0, 260.0, 240.0)],
        "ratios": [ratio(DEFAULT, DEFAULT, gain, 1.85, 2.6), ratio(best, DEFAULT, gain, 1.85, 2.6)],
        "loss_differences": {"fullstride auto": 1e-5},
    }  # fmt: skip


def steps(*results: dict[str, Any], machine: str = "some-cpu-avx2", **conditions: Any) -> File:
    found = {"conditions": CONDITIONS | conditions, "results": list(results) or [step()]}
    return File(machine, "steps", [part("fullstride bench step --model mlp", found)])


def kernel(op: str, case: str = "fp32 8 x 8", **fields: Any) -> dict[str, Any]:
    peer = {"name": "torch", "milliseconds": 4.0, "ratio": {"median": 2.0, "lowest": 1.5, "highest": 2.25}}
    return {
        "op": op, "case": case, "milliseconds": 2.0, "peers": [peer], "gigabytes_per_second": None,
        "share_of_bandwidth": None, "mix": None,
    } | fields  # fmt: skip


def kernels(
    *rows: str | dict[str, Any], machine: str = "some-cpu-avx2", suite: str = "kernels", **conditions: Any
) -> File:
    """rows: ops, or what kernel() made of them."""
    results = [kernel(row) if isinstance(row, str) else row for row in rows]
    found = {"conditions": CONDITIONS | conditions, "results": results}
    return File(machine, suite, [part("fullstride bench kernels", found)])


def rates(machine: str = "some-cpu-avx2", **conditions: Any) -> File:
    """Of suite machine."""

    def spread(value: float) -> dict[str, float]:
        return {"median": value, "lowest": 0.9 * value, "highest": 1.1 * value}

    found = {
        "conditions": CONDITIONS | conditions, "rounds": 3,
        "gflops": {"fp32": spread(150.0), "fp32_onednn": spread(160.0), "bf16": spread(300.0), "int8": spread(700.0)},
        "gigabytes_per_second": {"read": spread(30.0), "write": spread(20.0), "update": spread(50.0)},
    }  # fmt: skip
    return File(machine, "machine", [part("python -m benchmarks.machine", found)])


def mechanisms(**gain: float) -> File:
    spread = {"median": 1.031, "lowest": 1.012, "highest": 1.044} | gain
    times = {name: {"median": 200.0, "lowest": 190.0, "highest": 210.0} for name in ("all_ms", "without_ms")}
    row = {"model": "MLP", "mechanism": "fusion", "precision": "bf16", "gain": spread, **times}
    found = {"conditions": CONDITIONS | {"isa": "avx512_bf16"}, "results": [row]}
    return File("some-cpu-avx512_bf16", "mechanisms", [part("python -m benchmarks.mechanisms", found)])


class Repository:
    """A git repository with files and commits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        # The user's own settings (signing, hooks) are none of the tests' business.
        name = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(self.root), *name, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files: str) -> str:
        """Writes the files (path=content, given as **{...}), commits, and returns the commit as results name it."""
        for path, content in files.items():
            self.write(path, content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "--short=12", "HEAD")

    def write(self, path: str, content: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)

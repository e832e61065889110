"""What the trainer costs: steps of recipe `mlp` in the trainer against the same steps in a bare loop.

    python -m benchmarks.trainer_overhead [--steps 24] [--rounds 3] [--json FILE]

Both sides train the 52M-parameter model, prepared, on the same data, in processes of their own that take turns. The
bare loop does what training cannot do without: batch, forward, backward, step. The trainer has on what it has by
default: rows with gradient norms, clock, signals, lines of progress. Evaluations and checkpoints are left out: no part
of a step. Also measured: the share of time spent waiting for data, and the time from the imports to the first step.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fullstride.bench import conditions

_WARM_UP = 4  # steps, whose memory is new


def bare(steps: int, accumulate: int) -> dict[str, Any]:
    import fullstride
    from fullstride.data.order import Order
    from fullstride.train import assembly

    config = _config(steps, accumulate)
    task = config.task()
    model = task.build_model()
    model, optimizer = fullstride.prepare(model, assembly.build_optimizer(config, model), clip=config.clip)
    order = Order(len(task.train_data), config.micro_batch, config.seed)
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        for micro in range(accumulate):
            batch = task.train_data.batch(*order.micro_batch(step * accumulate + micro))
            loss = task.loss(model, batch)
            (loss / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds}


def trainer(steps: int, accumulate: int) -> dict[str, Any]:
    import fullstride
    from fullstride.run_folder.metrics import read

    began = time.perf_counter()
    marks: list[float] = []

    class Mark(fullstride.Hook):
        def on_start(self, trainer: Any) -> None:
            marks.append(time.perf_counter())

        def on_step(self, trainer: Any, loss: float) -> None:
            marks.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        fullstride.Trainer(_config(steps, accumulate), run, [Mark()]).fit()
        rows = [row for row in read(run) if row["kind"] == "train"]
    later = rows[1:] or rows
    waited = sum(row["time"]["data"] for row in later) / sum(sum(row["time"].values()) for row in later)
    return {
        "seconds": [after - before for before, after in itertools.pairwise(marks)],
        "start_up": marks[0] - began,
        "data_share": waited,
    }


def _config(steps: int, accumulate: int) -> Any:
    from fullstride.recipes import get, strict

    quiet = {"evaluation": {"every": 0}, "checkpoints": {"every": 0, "background": False}}
    return strict.overlay(get("mlp")(), {"steps": steps, "accumulate": accumulate, **quiet})


def main() -> None:
    parser = argparse.ArgumentParser(description="Trainer against bare loop.")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=["bare", "trainer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        import torch  # noqa: F401  start-up is counted from after the imports

        import fullstride.train.trainer  # noqa: F401

        side = bare if options.side == "bare" else trainer
        print(json.dumps(side(options.steps, options.accumulate)))
        return

    medians: dict[str, list[float]] = {"bare": [], "trainer": []}
    means: dict[str, list[float]] = {"bare": [], "trainer": []}
    start_ups, shares = [], []
    for _ in range(options.rounds):
        for side_name in medians:
            command = [sys.executable, "-m", "benchmarks.trainer_overhead", "--side", side_name]
            command += ["--steps", str(options.steps), "--accumulate", str(options.accumulate)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            answer = json.loads(done.stdout.splitlines()[0] if side_name == "bare" else done.stdout.splitlines()[-1])
            medians[side_name].append(1e3 * statistics.median(answer["seconds"][_WARM_UP:]))
            means[side_name].append(1e3 * statistics.mean(answer["seconds"][_WARM_UP:]))
            if side_name == "trainer":
                start_ups.append(answer["start_up"])
                shares.append(answer["data_share"])
    ratios = [after / before - 1 for before, after in zip(medians["bare"], medians["trainer"], strict=True)]
    report: dict[str, Any] = {
        "conditions": conditions.conditions(),
        "steps": options.steps, "accumulate": options.accumulate,
        "step_ms_medians": medians, "step_ms_means": means, "overhead": ratios,
        "data_share": shares, "start_up_seconds": start_ups,
    }  # fmt: skip
    print(conditions.as_text(report["conditions"]))
    print(f"bare loop   {_spread(medians['bare'])} ms a step")
    print(f"trainer     {_spread(medians['trainer'])} ms a step")
    print(f"overhead    {_spread([100 * ratio for ratio in ratios])} %, target under 2 %")
    print(f"data wait   {_spread([100 * share for share in shares])} % of the time, target under 1 %")
    print(f"start-up    {_spread(start_ups)} s from the imports to the first step, target under 5 s")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}..{max(values):.2f}]"


if __name__ == "__main__":
    main()

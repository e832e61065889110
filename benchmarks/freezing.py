"""What dynamic freezing saves and what it costs, criterion by criterion: the experiments behind the defaults.

    python -m benchmarks.freezing FOLDER [--tasks mnist char tune] [--cases none slowed-0.3 below-0.3 ...]
        [--seeds 0 1 2] [--json FILE]

    mnist   recipe mlp-mnist as it is; accuracy of 1,000 held-out digits
    char    recipe llama-char in 1500 steps instead of 8000; validation loss
    whole   recipe llama-char as it is
    tune    a llama-char of 1500 steps on Shakespeare's plays, fine-tuned in 600 steps on his poems; validation loss

A case is a criterion and its threshold; `none` is the same run without freezing, to be compared with by seed, and it
records how far each layer moved, for the curves. A run that is in FOLDER already is taken from there, so this can be
stopped and called again. Needs `fullstride data mnist` and `fullstride data shakespeare`.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fullstride
from fullstride.data import sources
from fullstride.recipes import get
from fullstride.recipes.config import Config
from fullstride.run_folder import metrics

TASKS = {"mnist": "accuracy", "char": "loss", "whole": "loss", "tune": "loss"}
POEMS = ("sonnets", "rape_of_lucrece", "lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle")
NEVER = 1e-12  # a threshold below which nothing falls: the freezer only looks on


class Movement(fullstride.Hook):
    """How far each stage moved in each window of steps, as the criterion `slowed` sees it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_step(self, trainer: fullstride.Trainer, loss: float) -> None:
        freezer = trainer.freezer
        if freezer is None or (freezer.steps - 1) % freezer.options.patience:
            return
        moved = {name: stage["signs"]["last"] for name, stage in _named(freezer)}
        if all(moved.values()):
            self.rows.append({"step": trainer.state.step, "moved": moved})


def _named(freezer: fullstride.optim.DynamicFreezer) -> list[tuple[str, dict[str, Any]]]:
    return list(zip(freezer.report().stages, freezer.state_dict()["stages"], strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="freezing", description="What dynamic freezing saves and costs.")
    parser.add_argument("folder", type=Path, help="of the runs")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["mnist", "char", "tune"])
    parser.add_argument("--cases", nargs="+", default=["none", "slowed-0.3", "below-0.3", "settled-0.05"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for task in options.tasks:
        for seed in options.seeds:
            for case in options.cases:
                rows.append(result(options.folder, task, case, seed))
                print(line(rows[-1]), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(table(rows)))


def result(folder: Path, task: str, case: str, seed: int) -> dict[str, Any]:
    """Of a run: its last evaluation, and what freezing saved. It is trained unless it is there."""
    run = folder / f"{task}-{case}-{seed}"
    done = run / "freezing.json"
    if not done.exists():
        if run.exists():
            shutil.rmtree(run)  # half a run of an earlier call
        movement = Movement()
        trainer = fullstride.Trainer(configure(folder, task, case, seed), run, hooks=[movement])
        trainer.quiet = True
        trainer.fit()
        fullstride.restore(trainer.model)
        rows = list(metrics.read(run / "metrics.jsonl"))
        valid = [row for row in rows if row["kind"] == "eval"][-1]
        train = [row for row in rows if row["kind"] == "train"]
        events = [row for row in rows if row.get("event") in ("freeze", "thaw")]
        shutil.rmtree(run / "checkpoints")
        done.write_text(json.dumps({
            "task": task, "case": case, "seed": seed, "steps": trainer.length.steps,
            "valid": {name: valid[name] for name in ("loss", "accuracy") if name in valid},
            "saved_compute": train[-1].get("saved_compute", 0.0),
            "frozen": [[row["step"], row["frozen"], row["num_layers"]] for row in events],
            "moved": movement.rows,
            "norms": [{"step": row["step"], "norms": row["grad_norms"]} for row in train if "grad_norms" in row],
        }))  # fmt: skip
    found: dict[str, Any] = json.loads(done.read_text())
    return found


def configure(folder: Path, task: str, case: str, seed: int) -> Config:
    config: Config
    if task == "mnist":
        config = get("mlp-mnist")()
    elif task == "tune":
        base = pretrained(folder)
        config = get("llama-char")().replace(
            init=str(base), steps=600, data={"path": str(folder / "poems")}, optimizer={"lr": 1e-3},
        )  # fmt: skip
    else:
        config = get("llama-char")()
        config = config if task == "whole" else config.replace(steps=1500)
    if task != "mnist":
        config = config.replace(samples={"tokens": 0}, logging={"every": 10})
    criterion, threshold = ("slowed", NEVER) if case == "none" else (case.split("-")[0], float(case.split("-")[1]))
    # Held-out data is looked at once, at the end: what counts is the model that the run leaves.
    return config.replace(
        seed=seed, evaluation={"every": 0}, checkpoints={"every": 0},
        freeze={"enabled": True, "criterion": criterion, "threshold": threshold},
    )  # fmt: skip


def pretrained(folder: Path) -> Path:
    """A llama-char that never saw the poems."""
    target = folder / "plays.safetensors"
    if not target.exists():
        texts = sources.default_folder("shakespeare")
        for path in texts.glob("*.txt"):
            place = folder / ("poems" if path.stem in POEMS else "plays")
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        config = get("llama-char")().replace(steps=1500, data={"path": str(folder / "plays")}, seed=100)
        config = config.replace(evaluation={"every": 0}, checkpoints={"every": 0}, samples={"tokens": 0})
        trainer = fullstride.Trainer(config, folder / "plays-run")
        trainer.quiet = True
        trainer.fit()
        fullstride.restore(trainer.model)
        from fullstride.train import export

        export.export(folder / "plays-run", target)
    return target


def line(row: dict[str, Any]) -> str:
    frozen = ", ".join(f"{count} of {of} from {step}" for step, count, of in row["frozen"]) or "none"
    valid = "  ".join(f"{name} {value:.4f}" for name, value in row["valid"].items())
    return f"{row['task']} {row['case']} seed {row['seed']}: {valid}  saved {row['saved_compute']:.1%}  frozen {frozen}"


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """By task and case: what was saved, and the difference to `none` of the same seed."""
    plain = {(row["task"], row["seed"]): row["valid"] for row in rows if row["case"] == "none"}
    lines = ["| task | case | saved [lowest..highest] | lost by freezing, mean [by seed] |", "|---|---|---|---|"]
    for task, case in dict.fromkeys((row["task"], row["case"]) for row in rows if row["case"] != "none"):
        own = [row for row in rows if (row["task"], row["case"]) == (task, case) and (task, row["seed"]) in plain]
        name = TASKS[task]
        sign, scale = (-100.0, 100.0) if name == "accuracy" else (1.0, 1.0)
        lost = [sign * (row["valid"][name] - plain[task, row["seed"]][name]) for row in own]
        unit, digits = ("points", 2) if scale > 1 else ("nats", 4)
        if lost:
            saved = [100 * row["saved_compute"] for row in own]
            each = ", ".join(f"{value:+.{digits}f}" for value in lost)
            lines.append(
                f"| {task} | {case} | {statistics.mean(saved):.1f} % [{min(saved):.1f}..{max(saved):.1f}] |"
                f" {statistics.mean(lost):+.{digits}f} {unit} [{each}] |"
            )
    return lines


if __name__ == "__main__":
    main()

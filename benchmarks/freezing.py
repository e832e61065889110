"""What dynamic freezing saves and what it costs, criterion by criterion: the experiments behind the defaults.

    python -m benchmarks.freezing FOLDER [--tasks mnist char tune] [--cases slowed-0.2 below-0.3 slowed-0.3-1 ...]
        [--seeds 0 1 2] [--json FILE]

    mnist   recipe mlp-mnist as it is; accuracy of 1,000 held-out digits
    small   the same with hidden layers of an eighth of the width
    char    recipe llama-char in 1500 steps instead of 8000; validation loss
    whole   recipe llama-char as it is
    tune    a llama-char of 1500 steps on Shakespeare's plays, fine-tuned in 600 steps on his poems; validation loss

A case is a criterion, its threshold and, if it is not the default, how many layers at the end never freeze. `none` is
the same run without freezing, to be compared with by seed; it records how far each layer moved, for the curves. A run
that is in FOLDER already is taken from there, so this can be stopped and called again. Needs `fullstride data mnist`
and `fullstride data shakespeare`.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fullstride
from fullstride.data import sources
from fullstride.recipes import config_files, get
from fullstride.recipes.config import Config
from fullstride.run_folder import metrics

TASKS = {"mnist": "accuracy", "small": "accuracy", "char": "loss", "whole": "loss", "tune": "loss"}
POEMS = ("sonnets", "rape_of_lucrece", "lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle")
NEVER = 1e-12  # a threshold below which nothing falls: the freezer only looks on


class Movement(fullstride.Hook):
    """How far each stage moved in each window of steps, as the criterion `slowed` sees it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_step(self, trainer: fullstride.Trainer, loss: float) -> None:
        freezer = trainer.freezer
        if freezer is None or freezer.criterion != "slowed" or (freezer.steps - 1) % freezer.options.patience:
            return
        stages = zip(freezer.report().stages, freezer.state_dict()["stages"], strict=True)
        moved = {name: stage["signs"]["last"] for name, stage in stages}
        if all(moved.values()):
            self.rows.append({"step": trainer.state.step, "moved": moved})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="freezing", description="What dynamic freezing saves and costs.")
    parser.add_argument("folder", type=Path, help="of the runs")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["mnist", "char", "tune"])
    parser.add_argument("--cases", nargs="+", default=["slowed-0.2", "below-0.3", "settled-0.05"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for task in options.tasks:
        for seed in options.seeds:
            for case in ["none", *options.cases]:
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
        config = configure(folder, task, case, seed)
        start = None if case == "none" else last_in_common(folder, task, config)
        if start is None:
            trainer = fullstride.Trainer(config, run, [movement])
        else:
            branch(start, run, config)
            trainer = fullstride.Trainer.resume(run, [movement])
        trainer.quiet = True
        trainer.fit()
        fullstride.restore(trainer.model)
        rows = list(metrics.read(run / "metrics.jsonl"))
        valid = [row for row in rows if row["kind"] == "eval"][-1]
        train = [row for row in rows if row["kind"] == "train"]
        events = [row for row in rows if row.get("event") in ("freeze", "thaw")]
        if case != "none":
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


def last_in_common(folder: Path, task: str, config: Config) -> Path | None:
    """The last checkpoint of the run without freezing before the first layer would freeze: up to there both are one,
    bit for bit, as its freezer looked on. Only `slowed` leaves it the same state."""
    if config.freeze.criterion != "slowed" or config.freeze.threshold is None:
        return None
    plain = folder / f"{task}-none-{config.seed}"
    farthest, first = 0.0, None
    for row in json.loads((plain / "freezing.json").read_text())["moved"]:
        moved = next(iter(row["moved"].values()))
        farthest = max(farthest, moved)
        if moved < config.freeze.threshold * farthest:
            first = row["step"]
            break
    kept = sorted(plain.glob("checkpoints/step-*"))
    before = [path for path in kept if first is None or int(path.name.split("-")[1]) < first]
    return before[-1] if before and first is not None else None


def branch(checkpoint: Path, run: Path, config: Config) -> None:
    """A run folder as of that checkpoint, which goes on with another config."""
    plain, step = checkpoint.parent.parent, int(checkpoint.name.split("-")[1])
    shutil.copytree(plain, run, ignore=shutil.ignore_patterns("checkpoints", "freezing.json", "run.lock"))
    shutil.copytree(checkpoint, run / "checkpoints" / checkpoint.name)
    precision = config_files.from_yaml((plain / "config.yaml").read_text()).precision  # what auto came to
    (run / "config.yaml").write_text(config_files.to_yaml(config.replace(precision=precision)))
    rows = [row for row in (run / "metrics.jsonl").read_text().splitlines() if json.loads(row)["step"] <= step]
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")


def configure(folder: Path, task: str, case: str, seed: int) -> Config:
    config: Config
    if task in ("mnist", "small"):
        config = get("mlp-mnist")()
        config = config if task == "mnist" else config.replace(model={"hidden": (512, 512, 512, 384)})
    elif task == "tune":
        base = pretrained(folder)
        config = get("llama-char")().replace(
            init=str(base), steps=600, optimizer={"lr": 1e-3},
            data={"path": str(folder / "poems"), "tokenizer": str(folder / "plays-run" / "characters.json")},
        )  # fmt: skip
    else:
        config = get("llama-char")()
        config = config if task == "whole" else config.replace(steps=1500)
    if task not in ("mnist", "small"):
        config = config.replace(samples={"tokens": 0}, logging={"every": 10})
    criterion, threshold, *active = ("slowed", NEVER) if case == "none" else case.split("-")
    # Held-out data is looked at once, at the end: what counts is the model that the run leaves.
    return config.replace(
        seed=seed, threads=1, evaluation={"every": 0},
        checkpoints={"every": 30 if case == "none" else 0, "keep": 6 if task == "mnist" else 40},
        freeze={"enabled": True, "criterion": criterion, "threshold": float(threshold)}
        | ({"min_active": int(active[0])} if active else {}),
    ).located()  # fmt: skip


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
        config = config.replace(threads=1)
        trainer = fullstride.Trainer(config, folder / "plays-run")
        trainer.quiet = True
        trainer.fit()
        fullstride.restore(trainer.model)
        from fullstride.train import export

        export.export(folder / "plays-run", target)
    return target


def line(row: Mapping[str, Any]) -> str:
    frozen = ", ".join(f"{count} of {of} from {step}" for step, count, of in row["frozen"]) or "none"
    valid = "  ".join(f"{name} {value:.4f}" for name, value in row["valid"].items())
    return f"{row['task']} {row['case']} seed {row['seed']}: {valid}  saved {row['saved_compute']:.1%}  frozen {frozen}"


def lost(rows: Sequence[Mapping[str, Any]], task: str) -> dict[str, list[float]]:
    """By case: how much worse each seed's run is than that without freezing, in points of accuracy or in nats."""
    name = TASKS[task]
    scale = -100.0 if name == "accuracy" else 1.0
    own = [row for row in rows if row["task"] == task]
    plain = {row["seed"]: row["valid"][name] for row in own if row["case"] == "none"}
    found: dict[str, list[float]] = {}
    for row in own:
        if row["case"] != "none" and row["seed"] in plain:
            found.setdefault(row["case"], []).append(scale * (row["valid"][name] - plain[row["seed"]]))
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| task | case | saved [lowest..highest] | lost, mean [seed by seed] |", "|---|---|---|---|"]
    for task in dict.fromkeys(row["task"] for row in rows):
        unit, digits = ("points", 2) if TASKS[task] == "accuracy" else ("nats", 4)
        for case, losses in lost(rows, task).items():
            saved = [100 * row["saved_compute"] for row in rows if (row["task"], row["case"]) == (task, case)]
            each = ", ".join(f"{value:+.{digits}f}" for value in losses)
            lines.append(
                f"| {task} | {case} | {statistics.mean(saved):.1f} % [{min(saved):.1f}..{max(saved):.1f}] |"
                f" {statistics.mean(losses):+.{digits}f} {unit} [{each}] |"
            )
    return lines


if __name__ == "__main__":
    main()

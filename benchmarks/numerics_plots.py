"""Draws what numerics.py measured."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

matplotlib: Any = import_module("matplotlib")  # not by an import statement: the type checker need not have it
matplotlib.use("Agg")
plt: Any = import_module("matplotlib.pyplot")

GOOD, BETTER, BAD, WORSE, PLAIN = "#1769aa", "#2e9e5b", "#c0392b", "#e08e0b", "#777777"
COLORS = {
    "fp32": PLAIN,
    "split, nearest": GOOD,
    "split, truncated": WORSE,
    "bf16, nearest": BAD,
    "bf16, stochastic": BETTER,
    "8-bit, stochastic": GOOD,
    "m, 8 bits": GOOD,
    "sqrt(v), 8 bits": BETTER,
    "bf16": WORSE,
    "8bit": GOOD,
    "bf16, as torch sums": BAD,
    "fp32 main gradients": GOOD,
    "split, fp32 states": WORSE,
    "split, bf16 states": BETTER,
    "split, 8-bit states": GOOD,
    "bf16 weights and states": BAD,
}


def draw(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "legend.frameon": False,
            "svg.fonttype": "none",  # text instead of its outlines: a third of the size
            "svg.hashsalt": "numerics",  # the same picture, the same file
        }
    )
    panels = (weights, second_moment, states, accumulation)
    figures = {panel.__name__: panel(results[panel.__name__]) for panel in panels}
    figures["training"] = training([result for name, result in results.items() if name.startswith("training")])
    for name, figure in figures.items():
        figure.tight_layout()
        figure.savefig(folder / f"numerics_{name}.svg", metadata={"Date": None})
        plt.close(figure)


def lines(axis: Any, x: Sequence[float], series: dict[str, list[float]], **options: Any) -> None:
    for name, values in series.items():
        axis.plot(x, values, label=name, color=COLORS[name], linewidth=width_of(name), **options)


def width_of(name: str) -> float:
    return 3.5 if name == "fp32" else 1.3  # seen under those that lie on it


def weights(result: dict[str, Any]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    lines(left, result["steps"], result["error"])
    left.set(yscale="log", xlabel="step", ylabel="relative to the norm of the weights", title="distance from fp64")
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.44), fontsize=8)
    percent = {name: [100 * v for v in values] for name, values in result["bias"].items() if "bf16, n" not in name}
    lines(right, result["steps"], percent)
    right.set(xlabel="step", ylabel="%", title="bias of |weight|")
    right.set_ylim(-0.36, 0.08)
    last = 100 * result["bias"]["bf16, nearest"][-1]
    right.legend(loc="center right", fontsize=8, title=f"bf16, nearest: to {last:.0f} %, not shown")
    return figure


def second_moment(result: dict[str, Any]) -> Any:
    figure, axis = plt.subplots(figsize=(6.4, 3.4))
    lines(axis, result["steps"], result["ratio"])
    axis.axvline(result["change"], color="black", linewidth=0.8, linestyle=":")
    axis.text(result["change"] + 60, 20, "gradients 10 times\nsmaller from here", fontsize=8)
    axis.set(yscale="log", xlabel="step", ylabel="mean of v / that of fp64", title="second moment, beta2 = 0.999")
    axis.legend()
    return figure


def states(result: dict[str, Any]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    lines(left, result["sizes"], result["codes"])
    left.set_xscale("log", base=2)
    left.set(yscale="log", xlabel="value / largest of its block", ylabel="relative error (rms)", title="one rounding")
    left.legend()
    lines(right, result["steps"], result["updates"])
    right.set(yscale="log", xlabel="step", ylabel="relative error (rms)", title="Adam's update m / (sqrt(v) + eps)")
    right.legend(loc="center right", bbox_to_anchor=(1.0, 0.5))
    return figure


def accumulation(result: dict[str, Any]) -> Any:
    figure, axis = plt.subplots(figsize=(6.4, 3.4))
    lines(axis, result["counts"], {name: [100 * e for e in v] for name, v in result["error"].items()}, marker="o")
    axis.set_xscale("log", base=2)
    axis.set_xticks(result["counts"], [str(count) for count in result["counts"]])
    axis.set(xlabel="micro-batches", ylabel="% of the gradient's norm", title="error of the accumulated gradient")
    axis.set_ylim(bottom=0)
    axis.legend()
    return figure


def training(runs: list[dict[str, Any]]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for name in runs[0]["losses"]:
        curves = [run["losses"][name] for run in runs]
        apart = [[a - b for a, b in zip(run["losses"][name], run["losses"]["fp32"], strict=True)] for run in runs]
        steps = [5 + 10 * i for i in range(len(curves[0]))]
        lines(left, steps, {name: average(curves)})
        lines(right, steps, {name: average(apart)})
    left.set(xlabel="step", ylabel="nats a byte", title=f"training loss, mean of {len(runs)} seeds", ylim=(2.0, 4.0))
    left.legend(fontsize=8)
    right.set(xlabel="step", title="the same, minus that of fp32")
    return figure


def average(curves: list[list[float]]) -> list[float]:
    return [mean(values) for values in zip(*curves, strict=True)]

"""What llama_curves.py found, as text; and its files, read back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_FREE = ("precision", "threads")  # may differ between runs that are compared: they are the sides' own
_LEFT_OUT = ("evaluation", "checkpoints", "logging", "samples")  # no part of a step


def progress(side: Mapping[str, Any]) -> str:
    point = side["points"][-1]
    compiling = f", and {side['compile_seconds']:.0f} s of compiling" if side["compile_seconds"] else ""
    return (
        f"{side['name']}: step {point['step']}, {point['seconds']:.1f} s{compiling}: validation {_loss(point['loss'])},"
        f" training {_loss(point['train_loss'])}, {side['units_per_second']:.0f} {side['unit']}/s"
        + "".join(f", {name} {value:.4f}" for name, value in point.get("scores", {}).items() if name != "loss")
    )


def lines(sides: Sequence[Mapping[str, Any]]) -> list[str]:
    """Losses at the same steps, how far apart they are, and how long each took to where the slowest came to."""
    if not sides:
        return ["nothing was trained"]
    by_step = [{point["step"]: point["loss"] for point in side["points"]} for side in sides]
    reference = next((i for i, side in enumerate(sides) if side["side"] == "stock"), None)
    text = ["validation loss at the same step", f"{'step':>8} " + " ".join(f"{_short(side):>24}" for side in sides)]
    for step in sorted(set().union(*by_step)):
        losses = [own.get(step) for own in by_step]
        apart = None if reference is None else losses[reference]
        cells = [_cell(loss, apart if i != reference else None) for i, loss in enumerate(losses)]
        text.append(f"{step:>8} " + " ".join(f"{cell:>24}" for cell in cells))
    for side in sides:
        text.append(
            f"{side['name']}: {side['steps']} steps in {side['seconds']:.1f} s,"
            f" {side['units_per_second']:.0f} {side['unit']}/s, {side['peak_bytes'] >> 20} MiB"
            + (f", compiled in {side['compile_seconds']:.0f} s, not counted" if side["compile_seconds"] else "")
        )
    return text + _times(sides)


def _times(sides: Sequence[Mapping[str, Any]]) -> list[str]:
    """When each came to the lowest loss that all of them came to."""
    lowest = [min((p["loss"] for p in side["points"] if p["loss"] is not None), default=None) for side in sides]
    if len(sides) < 2 or None in lowest:
        return []
    goal = max(loss for loss in lowest if loss is not None)
    when = ", ".join(f"{_short(side)} after {reached(side['points'], goal):.0f} s" for side in sides)
    return [f"validation loss {goal:.4f}: {when}"]


def reached(points: Sequence[Mapping[str, Any]], goal: float) -> float:
    """The seconds after which the loss was `goal`, on the straight line between two evaluations."""
    before = None
    for point in points:
        if point["loss"] is not None and point["loss"] <= goal:
            if before is None or before["loss"] <= point["loss"]:
                break
            share = (before["loss"] - goal) / (before["loss"] - point["loss"])
            return float(before["seconds"] + share * (point["seconds"] - before["seconds"]))
        before = point if point["loss"] is not None else before
    return float(point["seconds"])


def read(file: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sides of an earlier run of the same recipe; ValueError if it was another."""
    try:
        content = json.loads(file.read_text())
        sides: list[dict[str, Any]] = content["sides"]
        other = content["config"]
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
        raise ValueError(f"{file}: expected what --json of this program wrote, got something else") from None
    mine, theirs = _steps_of(config), _steps_of(other)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            raise ValueError(f"{file}: expected {name} {mine.get(name)}, as here, got {theirs.get(name)}")
    return sides


def _steps_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the steps, as JSON has it."""
    left = {name: value for name, value in config.items() if name not in (*_FREE, *_LEFT_OUT)}
    found: dict[str, Any] = json.loads(json.dumps(left))
    return found


def _short(side: Mapping[str, Any]) -> str:
    return str(side["name"]).partition(" (")[0]


def _cell(loss: float | None, other: float | None) -> str:
    return _loss(loss) + ("" if loss is None or other is None else f" ({loss - other:+.4f})")


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"

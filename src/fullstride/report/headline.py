"""What a reader wants to know first: did it finish, how good is it, how long did it take, how fast was it."""

from typing import NamedTuple

import numpy as np

from . import comparison, resources, words
from .run import Run, number, series
from .surroundings import look_up


class Tile(NamedTuple):
    label: str
    value: str
    note: str


def status(run: Run) -> tuple[str, bool]:
    """One phrase, and whether all is well."""
    planned = run.planned_steps
    of = f"{run.steps:,} of {planned:,} steps" if planned else f"{run.steps:,} steps"
    if run.end is not None:
        why = run.end.get("stopped")
        return (f"stopped after {of}: {why}", True) if why else (f"finished, {of}", True)
    if planned and run.steps >= planned:
        return f"finished, {of}", True
    if run.broken_off is not None:
        return f"{run.broken_off['event']} after {of}: {run.broken_off.get('why')}", False
    return f"not finished: {of}", False


def sentence(run: Run) -> str:
    """Who trained what where."""
    where, each = [], f" in each of {len(run.hosts)} processes" if len(run.hosts) > 1 else ""
    for path in (("cpu", "model"), ("environment", "threads"), ("environment", "precision")):
        value = look_up(run.machine, *path)
        if value is not None:
            where.append(f"{value} thread{'s' * (value != 1)}{each}" if path[1] == "threads" else str(value))
    parameters = number(run.machine, "parameters")
    size = f"{parameters:,.0f} parameters" if parameters else ""
    if parameters and parameters >= 1e6:
        size = f"{words.significant(parameters / 1e6)} million parameters"
    parts = [part for part in (size, f"trained on {', '.join(where)}" if where else "") if part]
    text = ", ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


def tiles(run: Run) -> list[Tile]:
    candidates = (_best(run), _time(run), _stock(run), _speed(run), _share(run), _memory(run), _energy(run))
    return [tile for tile in candidates if tile is not None]


def _best(run: Run) -> Tile | None:
    best = run.best()
    value = None if best is None else number(best, run.metric)
    if best is None or value is None:
        return None
    label = f"best {words.label(run.metric)}"
    return Tile(label, words.metric(run.metric, value), f"validation, step {best['step']:,}")


def _time(run: Run) -> Tile | None:
    resumed = len(run.resumes)
    times = {0: "", 1: ", resumed once"}.get(resumed, f", resumed {resumed} times")
    return Tile("time", words.duration(run.seconds), f"{run.steps:,} steps{times}") if run.seconds else None


def _stock(run: Run) -> Tile | None:
    ratio = comparison.ratio(run.compare)
    return None if ratio is None else Tile("against stock PyTorch", f"{ratio.median:.2f}x", comparison.spread(ratio))


def _speed(run: Run) -> Tile | None:
    rate, milliseconds = series(run.train, "per_second"), series(run.train, "step_ms")
    if not np.isfinite(rate).any():
        return None
    note = "median"
    if np.isfinite(milliseconds).any():
        note = f"{words.significant(float(np.nanmedian(milliseconds)))} ms a step, median"
    return Tile(f"{run.unit} a second", words.significant(float(np.nanmedian(rate))), note)


def _share(run: Run) -> Tile | None:
    share, gflops = series(run.train, "share_of_peak"), series(run.train, "gflops")
    if not np.isfinite(gflops).any():
        return None
    reached = f"{words.significant(float(np.nanmedian(gflops)))} GFLOP/s"
    if not np.isfinite(share).any():
        return Tile("arithmetic", reached, "peak not measured")
    return Tile("share of peak", words.percent(float(np.nanmedian(share)), 0), f"{reached}; peak measured")


def _memory(run: Run) -> Tile | None:
    resident = series(run.train, "resident_mb")
    if not np.isfinite(resident).any():
        return None
    return Tile("memory", words.megabytes(float(np.nanmax(resident))), "resident, at most")


def _energy(run: Run) -> Tile | None:
    joules, label = resources.energy(run)
    if joules is not None:
        return Tile("energy", words.energy(joules), "measured, whole CPU")
    return Tile("energy", "unavailable", label.partition(": ")[2]) if run.train else None

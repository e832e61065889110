"""The sections on what surrounds a run: the machine, the versions, what happened, how to do it again."""

from collections.abc import Mapping
from typing import Any

from . import memory, samples, speech, words
from .run import Run
from .section import Section, Table

_NOT_TOLD = ("kind", "attempt", "step", "seconds", "event", "nonfinite")  # of an event
_FACTS = {  # label: path into machine.json, as `fullstride info` collects it
    "CPU": ("cpu", "model"),
    "Architecture": ("cpu", "architecture"),
    "Usable cores": ("cores", "usable"),
    "Threads": ("environment", "threads"),
    "Kernels": ("environment", "kernels"),
    "Precision": ("environment", "precision"),
    "Activations kept": ("environment", "activations"),
    "Fullstride": ("fullstride", "version"),
    "Commit": ("fullstride", "commit"),
    "Python": ("environment", "python"),
    "torch": ("torch", "version"),
    "BLAS": ("torch", "blas"),
    "oneDNN": ("torch", "onednn"),
}


def look_up(facts: Mapping[str, Any], *path: str) -> Any:
    """The value at the end of the path, or None."""
    value: Any = facts
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def machine_section(run: Run) -> Section | None:
    if not run.machine:
        return None
    rows = [(label, str(value)) for label, path in _FACTS.items() if (value := look_up(run.machine, *path)) is not None]
    total = look_up(run.machine, "memory", "limit") or look_up(run.machine, "memory", "total")
    if isinstance(total, int | float):
        rows.insert(4, ("Memory", words.with_unit(f"{total / 2**30:.1f}", "GiB")))
    rows += _products(look_up(run.machine, "environment", "products"))
    reason = look_up(run.machine, "products", "reason")
    text = f"Precision: {reason}." if isinstance(reason, str) else ""
    return Section("Machine", text, tables=[Table("What it ran on.", (), rows)])


def _products(recorded: Any) -> list[tuple[str, str]]:
    """Who multiplied, by dtype: one name, or one for each kind of shape."""
    rows = []
    for dtype, who in recorded.items() if isinstance(recorded, Mapping) else ():
        by_shape = isinstance(who, Mapping)
        text = ", ".join(f"{shape} {name}" for shape, name in who.items()) if by_shape else str(who)
        rows.append((f"Products in {dtype}", text))
    return rows


def events_section(run: Run) -> Section | None:
    """Starts, resumes, the end, and whatever else was noted. Nothing if it simply ran."""
    cells, started = [], False
    for row in run.events:
        if row.get("event") in (samples.EVENT, memory.EVENT, speech.EVENT):
            continue  # they have sections of their own
        cells.append((f"{row['step']:,}", describe(row, started)))
        started |= row.get("event") == "start"
    if len(cells) <= 2 and not run.resumes:
        return None
    return Section("Events", tables=[Table("What happened, by step.", ("step", "event"), cells, 2)])


def describe(row: Mapping[str, Any], started: bool = False) -> str:
    """An event in words. `started`: another start came before it."""
    name = row.get("event")
    if name == "start":
        return "a new process went on from here" if started else "started"
    if name == "end":
        return f"stopped: {row['stopped']}" if row.get("stopped") else "finished"
    if name in ("freeze", "thaw") and isinstance(row.get("layers"), list):
        return f"{'froze' if name == 'freeze' else 'thawed'} {', '.join(map(str, row['layers']))}"
    rest = {key: value for key, value in row.items() if key not in _NOT_TOLD}
    tail = ", ".join(f"{words.label(key)} {value}" for key, value in rest.items() if value is not None)
    return ": ".join(part for part in (words.label(str(name)) if name else "", tail) if part) or "event"

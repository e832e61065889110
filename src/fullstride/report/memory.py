"""The section on what memory was for: measured in the run, and, from memory.json, what batches of other sizes cost."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import words
from .run import Run, number
from .section import HEIGHT, Figure, Section, Table
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure

EVENT = "memory"
PARTS = {"parameters": "blue", "optimizer": "green", "gradients": "sky", "activations": "vermilion",
         "temporary": "amber"}  # fmt: skip
_WHAT = {
    "parameters": "weights and buffers",
    "optimizer": "its states",
    "gradients": "after the last micro-batch of a step",
    "activations": "what forward leaves for backward, of one micro-batch",
    "temporary": "what backward needs beyond that, at most",
}
_REST = "the rest of the process"
_BATCHES = "What batches cost, each measured in a process of its own (`fullstride memory`)."


def section(run: Run) -> Section | None:
    own, batches = measured(run), _batches(run.memory)
    if own is None and not batches:
        return None
    figures, tables, text = [], [], []
    if own is not None:
        text.append(_sentence(own))
        tables.append(_own_table(own))
    if batches:
        bars = _measured_batches(batches)
        caption = "Memory by part for batches of several sizes: samples at once, or samples x micro-batches."
        if bars:
            figures.append(Figure(caption, _bars(bars), max(HEIGHT, 1.2 + 0.5 * len(bars))))
        tables.append(_batch_table(batches))
        text += _accumulated(batches)
    return Section("Memory", " ".join(text), figures, tables)


def measured(run: Run) -> Mapping[str, Any] | None:
    """What the last process of the run measured, in bytes."""
    rows = [row for row in run.events if row.get("event") == EVENT]
    return max(rows, key=lambda row: row["attempt"]) if rows else None


def size(num_bytes: float | None) -> str:
    if num_bytes is None:
        return "-"
    return words.megabytes(num_bytes / 1e6) if num_bytes >= 1e6 else words.with_unit(f"{num_bytes / 1e3:,.0f}", "kB")


def _sentence(own: Mapping[str, Any]) -> str:
    known = {part: value for part in PARTS if (value := number(own, part)) is not None}
    if not known:
        return ""
    largest = max(known, key=known.__getitem__)
    peak = number(own, "peak")
    most = f" The process held {size(peak)} at most by then." if peak else ""
    return (
        f"In one micro-batch of step {own['step']:,} the run measured what its memory was for:"
        f" {size(sum(known.values()))}, the largest part {largest}.{most}"
    )


def _own_table(own: Mapping[str, Any]) -> Table:
    rows = [(part, _WHAT[part], size(number(own, part))) for part in PARTS]
    resident = number(own, "resident")
    if resident is not None:
        known = sum(number(own, part) or 0.0 for part in ("parameters", "optimizer", "gradients"))
        rows.append((_REST, "Python, torch, data, what malloc keeps", size(max(0.0, resident - known))))
        rows.append(("resident", "after the step", size(resident)))
    rows.append(("peak", "the most the process ever held by then", size(number(own, "peak"))))
    return Table("Measured in this run.", ("part", "what it is", "size"), rows, 2, colours=list(PARTS.values()))


def _batches(found: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    entries = None if found is None else found.get("batches")
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _measured_batches(batches: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """By name; one that failed has no bar: it would look as if it took nothing."""
    known = [batch for batch in batches if any(number(batch, part) is not None for part in PARTS)]
    return [(str(batch.get("name", "?")), batch) for batch in known]


def _batch_table(batches: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for batch in batches:
        peak, before = number(batch, "peak"), number(batch, "before")
        grown = peak - before if peak is not None and before is not None else None
        cells = [size(number(batch, part)) for part in PARTS]
        rows.append((str(batch.get("name", "?")), *cells, size(peak), size(grown)))
    return Table(_BATCHES, ("batch", *PARTS, "process at most", "grown by"), rows)


def _accumulated(batches: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each accumulated batch against its micro-batch alone and against as many samples at once."""
    by_shape = {(number(x, "micro_batch"), number(x, "accumulate")): x for x in batches}
    text = []
    for (micro, accumulate), batch in by_shape.items():
        if micro is None or accumulate is None or accumulate < 2:
            continue
        own = number(batch, "activations")
        parts = []
        for other in (micro, micro * accumulate):
            theirs = number(by_shape.get((other, 1.0), {}), "activations")
            if own and theirs:
                parts.append(f"{own / theirs:.2f} times those of {other:.0f}")
        if parts:
            text.append(f"The activations of {batch.get('name')} take {' and '.join(parts)}.")
    return text


def _bars(bars: Sequence[tuple[str, Mapping[str, Any]]]) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        for i, (_, batch) in enumerate(bars):
            left = 0.0
            for part, colour in PARTS.items():
                value = (number(batch, part) or 0.0) / 1e6
                ax.barh(i, value, left=left, height=0.55, color=LIGHT[colour], label=part if i == 0 else None)
                left += value
            ax.annotate(f"{left:,.0f} MB", (left, i), xytext=(5, 0), textcoords="offset points", va="center")
        ax.set_yticks(range(len(bars)), [name for name, _ in bars])
        ax.set_ylim(len(bars) - 0.5, -0.5)
        ax.margins(x=0.18)
        ax.set_xlim(left=0)
        ax.grid(False)
        ax.set_xlabel("MB")
        ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3)

    return draw

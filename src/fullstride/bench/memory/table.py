"""What `fullstride memory` found, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...machine.memory import as_size

LEGEND = """\
each batch in a process of its own, after two steps; activations: what forward leaves for backward; temporary: what
backward needs beyond that at most; at most: the most the process ever held; grown by: that, without what it held
before the model was built"""
PARTS = ("parameters", "optimizer", "gradients", "activations", "temporary")
_NOISE = 16 << 10  # bytes of Python's own objects, which malloc serves, too
_COLUMNS = ("batch", *PARTS, "at most", "grown by")


def lines(batches: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table, and what accumulating costs in words."""
    rows = [_COLUMNS, *(_row(batch) for batch in batches)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = ["  ".join(f"{x:>{w}}" if i else f"{x:<{w}}" for i, (x, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows]  # fmt: skip
    said = findings(batches)
    return [*text, *([""] if said else []), *said]


def _row(batch: Mapping[str, Any]) -> tuple[str, ...]:
    if "failed" in batch:
        return (batch["name"], *("-" for _ in _COLUMNS[1:]))
    return (batch["name"], *(as_size(batch[part]) for part in PARTS), as_size(batch["peak"]), as_size(grown(batch)))


def grown(batch: Mapping[str, Any]) -> int | None:
    """Bytes that the process came to hold beyond those it began with."""
    peak, before = batch.get("peak"), batch.get("before")
    return None if peak is None or before is None else peak - before


def findings(batches: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each accumulated batch against its micro-batch alone, and against the same samples at once."""
    good = [batch for batch in batches if "failed" not in batch]
    alone = {batch["micro_batch"]: batch for batch in good if batch["accumulate"] == 1}
    found = []
    for batch in (batch for batch in good if batch["accumulate"] > 1):
        for other in (batch["micro_batch"], batch["micro_batch"] * batch["accumulate"]):
            if other in alone:
                found.append(_difference(batch, alone[other]))
    return found


def _difference(batch: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    changes = []
    for part in ("activations", "gradients"):
        more = batch[part] - other[part]
        same = abs(more) <= max(0.01 * other[part], _NOISE)
        how = "the same" if same else f"{as_size(abs(more))} {'more' if more > 0 else 'less'}"
        changes.append(f"{part} {how}")
    more = (grown(batch) or 0) - (grown(other) or 0)
    changes.append(f"in all {as_size(abs(more))} {'more' if more >= 0 else 'less'}")
    wide = batch.get("precision") == "bf16" and other["accumulate"] == 1 and batch["gradients"] > other["gradients"]
    why = " (gradients of several micro-batches are summed in fp32)" if wide else ""
    return f"{batch['name']} against {other['name']}: {', '.join(changes)}{why}"

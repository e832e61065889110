"""What the gradients of each layer say: vanishing, exploding or fine. From rows of metrics alone.

    influence   |g| |w| / sqrt(n): by how much the loss would change, to first order, if the layer moved along its
                gradient by its own length; by sqrt(n), as the few weights of a norm would look feeble beside an
                embedding. Scales cancel: in a plain deep network of ReLUs g.w is equal in all layers whatever their
                scales are, and before a norm |g| falls as |w| rises.
    vanishing   in the last quarter of the run the layer's influence is below VANISHES of the largest one, and |g| below
                _SMALL of the largest: weights near 0 have no influence, and yet they may learn
    exploding   the gradient was not finite, again and again or at the end; or in the last quarter |g| is EXPLODES times
                |w| and above the norm of all weights together; or it is above |w|, and RISES times an earlier quarter's

Layers are compared with each other: where a model has learnt what it can, all gradients are small, and none vanishes.
Medians, because the norm of one mini-batch jumps. docs/experiments.md has the runs that the limits are
from: in those that learnt, the least influence was 0.004 of the largest and |g| at most 1.2 |w|; where sigmoids kept
deep networks from learning, the front layers had 1e-10 to 5e-5.
Runs of earlier versions have no norms of weights: |g| alone is compared, and only what is not finite explodes.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

VANISHES = 1e-4
_SMALL = 1e-3
EXPLODES = 10.0
RISES = 100.0
_NOT_FINITE_SHARE = 0.05  # of the rows; a loss scale that is being found leaves a few
_LEAST_ROWS = 4  # fewer tell only whether gradients are finite

_MOST_ROWS = 2000  # of a longer run, every second or third
_ZERO = "exactly 0"

Word = Literal["vanishing", "exploding", "fine", "no gradient"]


@dataclass(frozen=True)
class Verdict:
    """Of one layer. Norms are medians, None where there is none that is finite."""

    layer: str
    word: Word
    why: str  # nothing if it is fine
    median: float | None
    first: float | None  # quarter of the run
    last: float | None
    share: float | None  # of the largest influence, in the last quarter


def judge(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Rows of all kinds, each step once, as metrics.read() gives them. Too few of them give no verdict."""
    trained = [row for row in rows if row["kind"] == "train" and _has(row, "grad_norms")]
    trained = trained[:: min(-1, -len(trained) // _MOST_ROWS)][::-1]  # with the last one
    layers = list(dict.fromkeys(name for row in trained for name in row["grad_norms"]))
    quarters = [trained[i * len(trained) // 4 : (i + 1) * len(trained) // 4] for i in range(4)]
    last = quarters[3] = trained[-max(len(quarters[3]), _LEAST_ROWS - 1) :]
    sizes = _sizes(rows)
    influences = {name: _influence(last, name, sizes.get(name)) for name in layers}
    largest = max((influence for influence in influences.values() if influence is not None), default=None)
    whole = math.hypot(*(_median(last, "weight_norms", name) or 0.0 for name in layers))
    steepest = max((_median(last, "grad_norms", name) or 0.0 for name in layers), default=0.0)
    given_up = _given_up(rows)
    found = []
    for name in layers:
        influence = influences[name]
        share = influence / largest if influence is not None and largest else None
        medians = [_median(quarter, "grad_norms", name) for quarter in quarters]
        word: Word = "exploding"
        why = given_up or _not_finite(trained, name)
        if why is None and len(trained) < _LEAST_ROWS:
            continue
        if why is None:
            why = _explodes(medians, _median(last, "weight_norms", name), whole)
        if why is None and not any(name in row["grad_norms"] for row in last):
            word, why = "no gradient", _since(trained, name)
        if why is None:
            word, why = "vanishing", _vanishes(medians[3], steepest, share)
        if why is None:
            word, why = "fine", ""
        found.append(Verdict(name, word, why, _median(trained, "grad_norms", name), medians[0], medians[3], share))
    return found


def summary(verdicts: Sequence[Verdict]) -> str:
    """One sentence or two: which layers are not fine, and what to try. Nothing if nothing was judged."""
    judged = [verdict for verdict in verdicts if verdict.word != "no gradient"]
    if not judged:
        return ""
    parts, count = [], len(judged)
    for word, advice in (("exploding", _AGAINST_EXPLODING), ("vanishing", _AGAINST_VANISHING)):
        bad = [verdict for verdict in judged if verdict.word == word]
        if bad:
            which = f"all {count} layers" if len(bad) == count else f"{len(bad)} of {count} layers"
            if all(verdict.why == _ZERO for verdict in bad):
                advice = _AGAINST_ZERO
            parts.append(f"Gradients of {which} are {word} ({_some([verdict.layer for verdict in bad])}): {advice}.")
    if parts:
        return " ".join(parts)
    return "The gradients of the only layer are fine." if count == 1 else f"Gradients of all {count} layers are fine."


_AGAINST_EXPLODING = "try a lower learning rate, a warm-up, clipping, or smaller initial weights"
_AGAINST_ZERO = "they are exactly 0, as behind dead ReLUs; try a lower learning rate, or GELU"
_AGAINST_VANISHING = (
    "try norms or residual connections, ReLU or GELU instead of sigmoid or tanh, or initial weights that suit the depth"
)


def _not_finite(trained: Sequence[Mapping[str, Any]], name: str) -> str | None:
    norms = [row["grad_norms"][name] for row in trained if name in row["grad_norms"]]
    bad = sum(not _is_finite(norm) for norm in norms)
    if bad and (not _is_finite(norms[-1]) or bad > max(1.0, _NOT_FINITE_SHARE * len(norms))):
        return f"not finite in {bad:,} of {len(norms):,} rows"
    return None


def _explodes(medians: Sequence[float | None], weights: float | None, whole: float) -> str | None:
    now, before = medians[3], [median for median in medians[:3] if median]
    if now is None or not weights:
        return None
    if now > EXPLODES * weights and now > whole:
        return f"{now / weights:,.0f} times the norm of its weights"
    if now > weights and before and now > RISES * min(before):
        return f"rose to {now / min(before):,.0f} times what it was"
    return None


def _vanishes(norm: float | None, steepest: float, share: float | None) -> str | None:
    if norm == 0:
        return _ZERO
    if share is None or norm is None or share >= VANISHES or norm >= _SMALL * steepest:
        return None
    return f"its influence is {share:.0e} of the largest"


def _influence(rows: Sequence[Mapping[str, Any]], name: str, size: Any) -> float | None:
    """|g| where no row has |w|."""
    has_weights = any(_has(row, "weight_norms") for row in rows)
    root = math.sqrt(size) if _is_finite(size) and size > 0 else 1.0
    values = []
    for row in rows:
        norm = row["grad_norms"].get(name)
        by = 1.0 if not has_weights else row["weight_norms"].get(name) if _has(row, "weight_norms") else None
        if _is_finite(norm) and _is_finite(by):
            values.append(norm * by / root)
    return statistics.median(values) if values else None


def _sizes(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Weights of each layer, as the last process counted them."""
    found = [row["layers"] for row in rows if row["kind"] == "event" and isinstance(row.get("layers"), Mapping)]
    return found[-1] if found else {}


def _median(rows: Sequence[Mapping[str, Any]], column: str, name: str) -> float | None:
    values = [row[column].get(name) for row in rows if _has(row, column)]
    finite = [value for value in values if _is_finite(value)]
    return statistics.median(finite) if finite else None


def _given_up(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The run was given up because of gradients that are not finite: rows may lie too far apart to have one."""
    marks = [row for row in rows if row["kind"] == "event" and row.get("event") in ("start", "end", "failed")]
    last = max(enumerate(marks), key=lambda mark: (mark[1]["attempt"], mark[0]))[1] if marks else {}
    steps = last.get("nonfinite") if last.get("event") == "failed" else None
    return f"not finite in the last {steps:,} steps" if steps else None


def _since(trained: Sequence[Mapping[str, Any]], name: str) -> str:
    return f"none since step {max(row['step'] for row in trained if name in row['grad_norms']):,}"


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = [f"layer {name}" if name.isdecimal() else name for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def _has(row: Mapping[str, Any], column: str) -> bool:
    return isinstance(row.get(column), Mapping) and bool(row[column])


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

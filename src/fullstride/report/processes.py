"""The section on a run in several processes: how it was shared, what each of them sent, and who waited for whom.

It shows one attempt, the last that had several: others may have had another number of processes, on other hosts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..run_folder import stragglers
from . import curves, words
from .run import Floats, Row, Run, series
from .section import Figure, Section, Table
from .style import SERIES

if TYPE_CHECKING:
    import matplotlib.figure

_LONG = 16  # processes: a table of more is folded
_OF_THE_FIRST = "In other sections, parts of the time, memory and cores are those of the first process, rank 0."


class Attempt(NamedTuple):
    number: int
    size: int  # processes
    began: int  # after this step
    last: int  # step
    rows: list[Row]  # that have all ranks, if it had several


def section(run: Run) -> Section | None:
    attempts = attempts_of(run)
    several = [attempt for attempt in attempts if attempt.size > 1]
    if not several:
        return None
    shown = several[-1]
    is_last = shown.number == max(row["attempt"] for row in run.train + run.events)
    hosts = run.hosts if is_last and len(run.hosts) == shown.size else None  # machine.json is of the last attempt
    names = [f"rank {rank} on {hosts[rank]}" if hosts else f"rank {rank}" for rank in range(shown.size)]
    how = run.machine.get("processes")
    parts = [f"{how}." if is_last and isinstance(how, str) else "", _which(attempts, shown, is_last)]
    text = " ".join(part for part in (*parts, _slowest(shown, names), _OF_THE_FIRST) if part)
    grey = "; grey: those that waited neither most nor least" if shown.size > len(SERIES) else ""
    caption = f"Share of the time that each process waited for others or exchanged with them, by step{grey}."
    figures = [Figure(caption, _waiting(run, shown, names))] if np.isfinite(_shares(shown)).any() else []
    return Section("Processes", text, figures, [_table(run, shown, names)])


def attempts_of(run: Run) -> list[Attempt]:
    """Those with rows that no later attempt has done anew."""
    rows = sorted((row for row in run.train if not run.was_done_anew(row)), key=lambda row: row["attempt"])
    starts, found, before = dict(run.starts), [], 0
    for attempt, group in groupby(rows, key=lambda row: row["attempt"]):
        own = list(group)
        sizes = Counter(_num_ranks(row) for row in own if row.get("ranks") is not None)
        size = sizes.most_common(1)[0][0] if sizes else 1
        whole = [row for row in own if _num_ranks(row) == size]
        found.append(Attempt(attempt, size, starts.get(attempt, before), own[-1]["step"], whole))
        before = own[-1]["step"]
    return found


def _num_ranks(row: Row) -> int:
    """1 where there is no list of them, or one that cannot be read."""
    ranks = row.get("ranks")
    return len(ranks) if isinstance(ranks, list) and ranks and all(isinstance(one, dict) for one in ranks) else 1


def _which(attempts: Sequence[Attempt], shown: Attempt, is_last: bool) -> str:
    """Nothing if there is but one."""
    if len(attempts) == 1 and is_last:
        return ""
    which = "the last attempt" if is_last else "the last attempt with rows of several processes"
    text = f"Shown is {which}, steps {shown.began + 1:,} to {shown.last:,}."
    spans = [(size, list(group)[-1].last) for size, group in groupby(attempts, key=lambda attempt: attempt.size)]
    if len(spans) == 1:
        return text
    numbers = ", then ".join(f"{size:,} up to step {last:,}" for size, last in spans)
    return f"{text} The number of processes changed when the run was resumed: {numbers}."


def _slowest(shown: Attempt, names: Sequence[str]) -> str:
    """Whom the log names, too, and in how many rows; of several the one of most rows."""
    known = np.all(np.isfinite(_column(shown, "wait") + _column(shown, "wall")), axis=0)
    rows = [row["ranks"] for row, whole in zip(shown.rows, known, strict=True) if whole]
    spells = list(stragglers.spells(rows))
    slow: dict[int, set[int]] = {}  # numbers of spells, by rank
    for end in range(len(spells) + 1):
        if stragglers.is_lasting(spells[:end]):
            slow.setdefault(spells[end - 1].rank, set()).update(range(end - stragglers.LASTING, end))
    if not slow:
        return "No process was slower than the others for long." if len(spells) >= stragglers.LASTING else ""

    def num_rows(rank: int) -> int:
        return sum(spells[i].num_rows for i in slow[rank])

    rank = max(slow, key=num_rows)
    share = float(np.mean([spells[i].share for i in slow[rank]]))
    others = {1: "", 2: " In others another one was."}.get(len(slow), f" In others {len(slow) - 1} others were.")
    return (
        f"In {num_rows(rank):,} of {len(rows):,} logged rows {names[rank]} was slower than the others, which waited"
        f" for it {words.percent(share, 0)} of the time.{others}"
    )


def _column(shown: Attempt, name: str) -> Floats:
    """(rank, row)."""
    return np.array([series([row["ranks"][rank] for row in shown.rows], name) for rank in range(shown.size)])


def _shares(shown: Attempt) -> Floats:
    """(rank, row), of the time."""
    wait, wall = _column(shown, "wait"), _column(shown, "wall")
    return np.divide(wait, wall, out=np.full_like(wait, np.nan), where=wall > 0)


def _ratio(values: Floats, by: Floats) -> float | None:
    """Of the sums over rows that have both."""
    known = np.isfinite(values) & (by > 0)
    return float(values[known].sum() / by[known].sum()) if known.any() else None


def _waited(shown: Attempt) -> list[float | None]:
    """By rank, share of all time."""
    return [_ratio(wait, wall) for wait, wall in zip(_column(shown, "wait"), _column(shown, "wall"), strict=True)]


def _table(run: Run, shown: Attempt, names: Sequence[str]) -> Table:
    covered = {row["step"]: steps for row, steps in zip(run.train, run.covered, strict=True)}
    steps = np.array([covered[row["step"]] for row in shown.rows], float)
    columns, rows = (_column(shown, "sent_mb"), _waited(shown), _column(shown, "resident_mb")), []
    for name, sent, share, resident in zip(names, *columns, strict=True):
        megabytes, held = _ratio(sent, steps), resident[np.isfinite(resident)]
        rows.append((
            name,
            "-" if megabytes is None else words.significant(megabytes),
            "-" if share is None else words.percent(share),
            words.megabytes(float(held.max())) if len(held) else "-",
        ))  # fmt: skip
    caption = "Each process; memory: the most that was resident at a logged step."
    fold = f"All {shown.size} processes" if shown.size > _LONG else ""
    colours = SERIES[: shown.size] if shown.size <= len(SERIES) else ()
    return Table(caption, ("process", "MB sent a step", "waiting", "memory"), rows, colours=colours, fold=fold)


def _waiting(run: Run, shown: Attempt, names: Sequence[str]) -> Callable[["matplotlib.figure.Figure"], None]:
    """Of more processes than there are colours, only those that waited least and most have one."""
    axis, shares = curves.step_axis(run)._replace(resumes=[]), _shares(shown)
    colours = dict(zip(range(shown.size), SERIES, strict=False))
    if shown.size > len(SERIES):
        order = sorted((share, rank) for rank, share in enumerate(_waited(shown)) if share is not None)
        colours = {order[-1][1]: "blue", order[0][1]: "vermilion"}

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        steps = axis.of(shown.rows)
        for rank in sorted(range(shown.size), key=lambda rank: rank in colours):  # those with a colour on top
            curves.line(ax, steps, shares[rank], colours.get(rank, "grey"), names[rank] if rank in colours else None)
        ax.set_ylim(bottom=0)
        curves.finish(ax, axis, "waiting")
        ax.set_xlim(left=shown.began)
        ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        ax.legend(loc="best")

    return draw

"""Blocks of docs/distributed.md, of one machine each (render.py)."""

from typing import Any

from ..cells import line, table, taken, with_spread
from ..result_files import File, Spread, rows, spread
from ..tables import find, nothing

AT = 8, 64  # nodes that the table of predictions shows


def processes(files: list[File], where: str) -> list[str]:
    """One process with all threads against two with half of them each."""
    head = ["recipe", "one process", "two processes", "gain of two", "sent a step", "waiting a step",
            "commit, date, load"]  # fmt: skip
    return _rows(files, where, "processes", head, _of_processes)


def _of_processes(part: dict[str, Any], row: dict[str, Any]) -> list[list[str]]:
    return [[
        f"{row['recipe']}, {row['rounds']} rounds", _ms(row["one"]), _ms(row["two"]),
        f"**{with_spread(spread(row['gain']), 2, 'x')}**", _mb(row["sent_mb"]), f"{row['exposed_ms']:.1f} ms",
        taken(part),
    ]]  # fmt: skip


def averaging(files: list[File], where: str) -> list[str]:
    """What a process loses by averaging gradients with another."""
    head = ["recipe", "two runs side by side", "two processes of one run", "time of a step", "waiting a step",
            "commit, date, load"]  # fmt: skip
    return _rows(files, where, "averaging", head, _of_averaging)


def _of_averaging(part: dict[str, Any], row: dict[str, Any]) -> list[list[str]]:
    return [[
        f"{row['recipe']}, {row['rounds']} rounds", _ms(row["apart"]), _ms(row["together"]),
        f"**{with_spread(spread(row['ratio']), 2, 'x')}**", f"{row['exposed_ms']:.1f} ms", taken(part),
    ]]  # fmt: skip


def sharding(files: list[File], where: str) -> list[str]:
    """Memory of each process with and without ZeRO-1."""
    head = ["recipe", "processes", "memory of each", "sharded", "losses", "commit, date, load"]
    return _rows(files, where, "sharding", head, _of_sharding)


def _of_sharding(part: dict[str, Any], row: dict[str, Any]) -> list[list[str]]:
    return [
        [
            row["recipe"], num, _mb(own["whole_mb"]), f"**{_mb(own['sharded_mb'])}**",
            "equal to the bit" if own["equal"] else "not equal", taken(part),
        ]
        for num, own in row["processes"].items()
    ]  # fmt: skip


def links(files: list[File], where: str) -> list[str]:
    """Steps of two hosts over throttled links, measured and predicted."""
    head = ["link", "recipe", "what is sent", "MB a step", "measured", "predicted", "off by"]
    lines = _rows(files, where, "two_hosts", head, _of_link)
    for part in _parts(files, where, "two_hosts"):
        found = ", ".join(
            f"{name}: {1e6 * own['fp32']['latency']:.0f} us and {own['fp32']['bandwidth'] / 1e6:.0f} MB/s in fp32"
            for name, own in part["links"].items()
        )
        lines += ["", f"Links as fitted to sums, {found} ({taken(part)})."]
    return lines


def _of_link(part: dict[str, Any], row: dict[str, Any]) -> list[list[str]]:
    return [[
        row["link"], row["recipe"], row["way"], f"{row['sent_mb']:.2f}", _ms(row["milliseconds"]),
        f"{row['predicted_ms']:.1f} ms", "fitted" if _is_fitted(row) else f"{100 * row['error']['share']:+.0f} %",
    ]]  # fmt: skip


def _is_fitted(row: dict[str, Any]) -> bool:
    """The outer step of islands is what is left of their time on the first link: it says nothing of the model."""
    return row["link"] == "no limit" and row["way"].startswith("islands")


def ahead(files: list[File], where: str) -> list[str]:
    """Predicted efficiency of more nodes."""
    parts = _parts(files, where, "two_hosts")
    if not parts:
        return nothing(where)
    found = parts[-1]["ahead"]
    rates = list(dict.fromkeys(row["gigabits"] for row in found))
    lines = table(["recipe", "what is sent", *(f"{nodes} nodes, {rate} Gbit/s" for rate in rates for nodes in AT)])
    for recipe, way in dict.fromkeys((row["recipe"], row["way"]) for row in found):
        own = {row["gigabits"]: row for row in found if (row["recipe"], row["way"]) == (recipe, way)}
        shares = [_share(own[rate], nodes) for rate in rates for nodes in AT]
        lines.append(line([recipe, way, *shares]))
    return lines


def _share(row: dict[str, Any], nodes: int) -> str:
    return f"{100 * row['share'][row['nodes'].index(nodes)]:.0f} %"


def local_updates(files: list[File], where: str) -> list[str]:
    """The last loss of each side of a run over a slow link."""
    parts = _parts(files, where, "local_updates")
    if not parts:
        return nothing(where)
    part = parts[-1]
    lines = table(["what is sent", "validation loss", "sent", "time in training steps"])
    for row in part["results"]:
        last = row["points"][-1]
        lines.append(line([row["side"], f"{last['loss']:.4f}", _mb(last["sent_mb"]), f"{last['seconds']:.0f} s"]))
    return [*lines, "", f"{part['recipe']}, {part['steps']:,} steps, a link of {part['mbit']:.0f} Mbit/s, one seed"
            f" ({taken(part)})."]  # fmt: skip


# ---- what they have in common ----------------------------------------------------------------------------------------


def _rows(files: list[File], where: str, suite: str, head: list[str], cells_of: Any) -> list[str]:
    lines = table(head)
    for part, row in rows(find(files, suite, where)):
        lines += [line(cells) for cells in cells_of(part, row)]
    return lines if len(lines) > 2 else nothing(where)


def _parts(files: list[File], where: str, suite: str) -> list[dict[str, Any]]:
    file = find(files, suite, where)
    return file.parts if file else []


def _ms(value: dict[str, float]) -> str:
    found = Spread(value["median"], value["lowest"], value["highest"])
    return with_spread(found, 0 if found.median >= 100 else 1, " ms")


def _mb(value: float) -> str:
    return f"{value:,.0f} MB" if value >= 10 else f"{value:.1f} MB"

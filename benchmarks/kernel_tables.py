"""The kernels as tables in Markdown: times, ratios, and rates in everyday units."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .cells import commit, folded, line, number, ratio, table, with_spread
from .result_files import ROOT, File, rows, spread
from .suites import gone
from .tables import find, nothing

SUITES = {"kernels": "memory as it comes for both sides", "kernels_heap_kept": "heap kept for both sides"}


def kernels(files: list[File], suite: str, where: str, root: Path = ROOT) -> list[str]:
    """Times, ratios and rates of every op that there still is."""
    lines = table(["kernel", "case", "ms", "times as fast as", "rate", "GB/s, share of the bandwidth", "commit"])
    file = find(files, suite, where)
    for part, row in rows(file):
        if gone(row["op"], root):
            continue
        lines.append(line([row["op"], row["case"], _time(row), _peers(row), rate(row), _moved(row), commit(part)]))
    return lines if file else nothing(where)


def of_machine(files: list[File], machine: str) -> list[str]:
    """Both suites, each folded."""
    lines: list[str] = []
    for suite, how in SUITES.items():
        file = find(files, suite, machine)
        if file is None:
            lines += [f"With {how} nothing was taken yet.", ""]
            continue
        found = kernels(files, suite, machine)
        ops = len({row.split(" | ")[0] for row in found[2:]})
        lines += [*folded(f"{ops} kernels in {len(found) - 2} cases, {how}", found), ""]
    return lines[:-1]


def rate(row: Mapping[str, Any]) -> str:
    """What a kernel does in a second, where it was counted: newer results have it."""
    rates = []
    if row.get("gflops"):
        share = row.get("share_of_peak")
        of_peak = f", {100 * share:.0f} % of the {row['precision']} peak" if share else ""
        rates.append(f"{number(row['gflops'])} GFLOP/s{of_peak}")
    updated = parameters_per_second(row)
    if updated:
        rates.append(f"{updated / 1e9:.2f} G parameters/s")
    return ", ".join(rates)


def parameters_per_second(row: Mapping[str, Any]) -> float | None:
    """Of an optimizer: as it was recorded, else by the number in the name of the case. None: it is no optimizer."""
    recorded: float | None = row.get("parameters_per_second")
    named = re.search(r"([\d.]+) ?M parameters", row["case"])
    if recorded or named is None:
        return recorded
    return 1e9 * float(named[1]) / row["milliseconds"]


def _peers(row: Mapping[str, Any]) -> str:
    peers = [f"{peer['name']} {ratio(spread(peer['ratio']))}" for peer in row["peers"]]
    return "; ".join([*peers, *(f"{name}: left out, {why}" for name, why in row.get("left_out", {}).items())])


def _time(row: Mapping[str, Any]) -> str:
    times = row.get("milliseconds_spread")
    if times is None:
        return f"{number(row['milliseconds'])} ms"
    found = spread(times)
    return with_spread(found, 0 if found.median >= 100 else 1 if found.median >= 10 else 2, " ms")


def _moved(row: Mapping[str, Any]) -> str:
    if not row["gigabytes_per_second"]:
        return ""
    moved, share = f"{row['gigabytes_per_second']:.1f} GB/s", row["share_of_bandwidth"]
    return f"{moved}, {100 * share['median']:.0f} % of {row['mix']}" if share else moved

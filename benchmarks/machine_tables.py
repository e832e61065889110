"""Blocks that show every machine there are results of, by its name: a new one appears without a change to a document.

machines         which they are, what they reach, and what was taken there
recipes          gains of each model's step, a column a machine
steps, kernels   and others: the block of each machine, one after the other, each under its name
"""

from collections.abc import Callable
from pathlib import Path

from . import roofs, tables
from .cells import NOT_MEASURED, NOTHING, kind_of, line, table, with_spread
from .result_files import File, Spread, date_of
from .step_rows import MODELS, newest_steps, title
from .suites import SUITES

Block = Callable[[list[File], str], list[str]]


def names(files: list[File]) -> list[str]:
    """Of the machines; the newest results first."""
    dates: dict[str, str] = {}
    for file in files:
        newest = max((str(part["conditions"]["date"]) for part in file.parts), default="")
        dates[file.machine] = max(newest, dates.get(file.machine, ""))
    return sorted(dates, key=lambda machine: dates[machine], reverse=True)


def title_of(files: list[File], machine: str) -> str:
    """AMD EPYC (family 26, model 2), AVX512-BF16."""
    facts = roofs.conditions_of(files, machine)
    return f"{facts['cpu']}, {kind_of(facts)}"


def machines(files: list[File]) -> list[str]:
    """What each machine reaches, and what was taken there."""
    if not files:
        return [NOTHING]
    lines = table(["machine", "cores", "products, fp32", "products, bf16", "read", "write", "update", "taken there"])
    sources = {}
    for machine in names(files):
        found = roofs.of(files, machine)
        sources[machine] = found.source
        rates = [_rate(found.products.get(name), 0, " GFLOP/s") for name in ("fp32", "bf16")]
        rates += [_rate(found.bandwidths.get(mix), 1, " GB/s") for mix in ("read", "write", "update")]
        cores = str(roofs.conditions_of(files, machine)["usable_cores"])
        lines.append(line([title_of(files, machine), cores, *rates, _taken_there(files, machine)]))
    told = [f"{title_of(files, machine)}: {source}" for machine, source in sources.items() if source]
    return [*lines, "", f"Rates are of: {'; '.join(told)}."] if told else lines


def recipes(files: list[File]) -> list[str]:
    """How many times as fast a step is, a column a machine."""
    steps = {file.machine: newest_steps(file) for file in files if file.suite == "steps"}
    if not steps:
        return [NOTHING]
    shown = [machine for machine in names(files) if machine in steps]
    lines = table(["model", *(title_of(files, machine) for machine in shown)])
    known = [name for found in steps.values() for name in found]
    for name in dict.fromkeys((*MODELS, *known)):
        rows = [steps[machine].get(name) for machine in shown]
        lines.append(line([title(name), *(NOT_MEASURED if row is None else tables.gains(row[1]) for row in rows)]))
    return lines


def each(block: Block, suites: tuple[str, ...], files: list[File]) -> list[str]:
    """The block of every machine that has results of one of these suites, under its name."""
    lines: list[str] = []
    for machine in names(files):
        if any(file.suite in suites and file.machine == machine for file in files):
            lines += [f"### {title_of(files, machine)}", "", *block(files, machine), ""]
    return lines[:-1] or [NOTHING]


def pictures(files: list[File], folder: Path, of: Callable[[str], str]) -> list[str]:
    """Of every machine. folder: as the document names it; of: the name of a machine's picture, "" if it has none."""
    lines: list[str] = []
    for machine in names(files):
        name = of(machine)
        if name:
            lines += [f"![Roofline of {title_of(files, machine)}]({(folder / name).as_posix()})", ""]
    return lines[:-1] or [NOTHING]


def _rate(rate: Spread | None, digits: int, unit: str) -> str:
    return NOT_MEASURED if rate is None else with_spread(rate, digits, unit)


def _taken_there(files: list[File], machine: str) -> str:
    dates: dict[str, str] = {}
    for file in files:
        if file.machine == machine:
            dates[file.suite] = max(date_of(part) for part in file.parts)
    order = [*(name for name in SUITES if name in dates), *(name for name in dates if name not in SUITES)]
    return ", ".join(f"{name} {dates[name]}" for name in order)

"""How a result is written in a cell of a table: numbers with their unit and spread, and how they were taken."""

from collections.abc import Mapping
from typing import Any

from .result_files import Spread, commit_of, date_of, spread

KINDS = {"avx512_bf16": "AVX512-BF16", "avx2": "AVX2 only", "amx": "AMX"}  # of CPUs, as README shows them
NOT_MEASURED, DIED = "not measured yet", "died"
NOTHING = "Nothing was measured yet."


def table(head: list[str]) -> list[str]:
    return [line(head), "|---" * len(head) + "|"]


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def folded(summary: str, lines: list[str]) -> list[str]:
    """Opened by a click. Markdown inside of HTML needs empty lines around it."""
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "", "</details>"]


def taken(part: Mapping[str, Any]) -> str:
    return f"{commit(part)}, {date_of(part)}, load {part['conditions']['load']:g}"


def commit(part: Mapping[str, Any]) -> str:
    return commit_of(part)[:7]


def kind_of(conditions: Mapping[str, Any]) -> str:
    """AVX2 only; other instructions by their own name."""
    isa = str(conditions.get("best_isa") or conditions["isa"])
    return KINDS.get(isa, isa)


def ms(side: Mapping[str, Any]) -> str:
    return with_spread(spread(side["milliseconds"]), 0, " ms")


def median_ms(values: list[float]) -> str:
    return f"{number(spread(values).median)} ms"


def ratio(value: Spread) -> str:
    return with_spread(value, 2, "x")


def with_spread(value: Spread, digits: int, unit: str) -> str:
    median = f"{value.median:.{digits}f}{unit}"
    if value.lowest is None or value.highest is None:
        return median
    return f"{median} [{value.lowest:.{digits}f}..{value.highest:.{digits}f}]"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

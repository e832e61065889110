"""Numbers as people read them."""

import math

_NO_BREAK = "\N{NO-BREAK SPACE}"


def count(value: float) -> str:
    """1234567 -> 1,234,567."""
    return f"{value:,.0f}"


def significant(value: float, digits: int = 3) -> str:
    """So many digits, with separators and without an exponent where that can be read: 12,300; 45.6; 0.0123; 1.2e-07."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if -5 < magnitude < 12:
        return f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


def percent(share: float, decimals: int = 1) -> str:
    return f"{100 * share:.{decimals}f}{_NO_BREAK}%"


def with_unit(value: str, unit: str) -> str:
    return f"{value}{_NO_BREAK}{unit}"


def duration(seconds: float) -> str:
    """0.45 s; 12.3 s; 1 min 32 s; 2 h 05 min."""
    if seconds < 60:
        return with_unit(significant(seconds), "s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{with_unit(str(minutes), 'min')} {with_unit(f'{rest:02d}', 's')}"
    hours, minutes = divmod(minutes, 60)
    return f"{with_unit(str(hours), 'h')} {with_unit(f'{minutes:02d}', 'min')}"


def megabytes(value: float) -> str:
    return with_unit(significant(value / 1000), "GB") if value >= 1000 else with_unit(count(value), "MB")


def energy(joules: float) -> str:
    for factor, unit in ((3.6e6, "kWh"), (1e3, "kJ")):
        if joules >= factor:
            return with_unit(significant(joules / factor), unit)
    return with_unit(significant(joules), "J")


def metric(name: str, value: float) -> str:
    """A share such as an accuracy in percent, everything else as a number."""
    if is_share(name):
        return percent(value)
    return significant(value)


def is_share(name: str) -> bool:
    return any(part in name.lower() for part in ("accuracy", "recall", "precision", "top1", "top5"))


def label(name: str) -> str:
    return name.replace("_", " ")

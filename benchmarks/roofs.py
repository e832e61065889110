"""What a machine reaches at most, from its results: suite machine where it was taken, else what other suites noted."""

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from .result_files import File, Spread, rows, spread


class Roofs(NamedTuple):
    """Of one machine. Empty: nobody measured it."""

    products: dict[str, Spread]  # "fp32", "bf16" -> GFLOP/s
    bandwidths: dict[str, Spread]  # mix -> GB/s
    source: str  # the suites that they are of


def of(files: list[File], machine: str) -> Roofs:
    own = {file.suite: file for file in files if file.machine == machine}
    if "machine" in own:
        part = own["machine"].parts[-1]
        found = {name: spread(rate) for name, rate in part["gflops"].items()}
        mixes = {mix: spread(rate) for mix, rate in part["gigabytes_per_second"].items()}
        return Roofs(_by_precision(found), mixes, "suite machine")
    return _from_others(own)


def _by_precision(rates: Mapping[str, Spread]) -> dict[str, Spread]:
    """The best way to multiply in each: fp32 has two."""
    found = {}
    for precision in ("fp32", "bf16"):
        own = [rate for name, rate in rates.items() if name.startswith(precision)]
        if own:
            found[precision] = max(own, key=lambda rate: rate.median)
    return found


def _from_others(own: Mapping[str, File]) -> Roofs:
    """Steps know the peaks that they are shares of, profiles the bandwidths."""
    peaks: dict[str, list[float]] = {}
    for _, row in rows(own.get("steps")):
        for side in row["sides"]:
            if side.get("share_of_peak") and side.get("gflops"):
                peaks.setdefault(side["precision"], []).append(side["gflops"] / side["share_of_peak"])
    mixes: dict[str, Spread] = {}
    profile = own.get("llama_profile")
    for part in profile.parts if profile else ():
        mixes |= {mix: Spread(rate) for mix, rate in part["bandwidths"].items()}
    suites = [name for name, there in (("steps", peaks), ("llama_profile", mixes)) if there]
    # One of those that there are: figures.py looks for it.
    products = {name: Spread(statistics.median_low(own), min(own), max(own)) for name, own in peaks.items()}
    return Roofs(
        {name: products[name] for name in ("fp32", "bf16") if name in products}, mixes,
        f"suite{'s' * (len(suites) > 1)} {' and '.join(suites)}" if suites else "",
    )  # fmt: skip


def conditions_of(files: list[File], machine: str) -> dict[str, Any]:
    """The newest of this machine."""
    parts = [part for file in files if file.machine == machine for part in file.parts]
    facts: dict[str, Any] = max(parts, key=lambda part: str(part["conditions"]["date"]))["conditions"]
    return facts

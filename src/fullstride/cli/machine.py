"""fullstride info, cache."""

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..backends.cache import Findings


def add(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        help="what this machine is and what it can reach",
        description="Shows the CPU, the cores and memory this process may use, the kernels chosen, what torch brings,"
        " and measured rates of matrix products and memory. Takes about five seconds, and ten more on a machine that"
        " it has not seen yet.",
    )
    info.add_argument("--json", action="store_true", help="print the facts as JSON")
    info.add_argument("--no-measure", action="store_true", help="leave the measured rates out")
    info.set_defaults(command=_info)

    cache = commands.add_parser(
        "cache",
        help="what was measured on this machine before, and forgetting it",
        description="Shows what was tried and measured on this machine: which libraries' products work, how fast they"
        " are, and whether others used the machine meanwhile. `clear` forgets it: the next training, or `fullstride"
        " info`, tries and measures anew.",
    )
    cache.add_argument("action", metavar="show|clear", nargs="?", choices=["show", "clear"], default="show")
    cache.add_argument("--json", action="store_true", help="print what is kept as JSON")
    cache.set_defaults(command=_cache)


def _info(options: argparse.Namespace) -> int:
    from .. import info

    facts = info.collect(measure=not options.no_measure)
    print(json.dumps(facts, indent=2) if options.json else info.as_text(facts))
    return 0


def _cache(options: argparse.Namespace) -> int:
    from ..backends import cache

    if options.action == "clear":
        removed = cache.clear()
        print("\n".join(f"removed {path}" for path in removed) or f"nothing to remove: there is no {cache.file()}")
        return 0
    entries = cache.entries()
    if options.json:
        print(json.dumps({key: asdict(findings) for key, findings in entries.items()}, indent=2))
        return 0
    print(cache.file() if entries else f"nothing is kept yet: there is no {cache.file()}, or nothing in it to be read")
    for key, findings in entries.items():
        print("\n".join(_entry(key, findings)))
    return 0


def _entry(key: str, findings: "Findings") -> list[str]:
    from ..backends.trials import verdicts

    taken = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(findings.taken))
    how = f"under load ({findings.busy}), to be taken again" if findings.busy else "on a quiet machine"
    lines = ["", key, f"  taken {taken} {how}"]
    for precision, by_shape in findings.rates.items():
        for shape, rates in by_shape.items():
            best_first = sorted(rates, key=rates.__getitem__, reverse=True)
            text = ", ".join(f"{name} {rates[name]:.0f}" for name in best_first)
            lines.append(f"  {precision} {shape:<9}  {text} GFLOP/s")
    bad = verdicts.lines(findings.verdicts)
    fine = f"{len(findings.verdicts) - len(bad)} of {len(findings.verdicts)} candidates are fine"
    return [*lines, *(f"  {line}" for line in bad), f"  {fine}"]

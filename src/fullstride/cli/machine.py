"""fullstride info."""

import argparse
import json
from typing import Any


def add(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        help="what this machine is and what it can reach",
        description="Shows the CPU, the cores and memory this process may use, the kernels chosen, what torch brings,"
        " and measured rates of matrix products and memory. Takes about five seconds.",
    )
    info.add_argument("--json", action="store_true", help="print the facts as JSON")
    info.add_argument("--no-measure", action="store_true", help="leave the measured rates out")
    info.set_defaults(command=_info)


def _info(options: argparse.Namespace) -> int:
    from ..machine import info

    facts = info.collect(measure=not options.no_measure)
    print(json.dumps(facts, indent=2) if options.json else info.as_text(facts))
    return 0

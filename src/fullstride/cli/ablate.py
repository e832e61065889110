"""fullstride ablate."""

import argparse
import math
from typing import Any

from .arguments import number
from .studies import add_command, config_of

minutes = number("minutes above 0", lambda x: 0 < x < math.inf)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "ablate",
        help="what each technique earns for a recipe, alone and left out",
        description="Switches every technique on alone over stock PyTorch, and leaves it out alone of all that"
        " `fullstride train` does: speed, memory and loss of each, in processes that take turns, and all of them"
        " together beside the product of the single gains. Leaves a page with a picture.",
    )
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="only these techniques; --list has them")
    parser.add_argument(
        "--minutes", metavar="M", type=minutes, default=20.0,
        help="about how long it takes, if three rounds of every part fit into it (default: 20)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="show the techniques, and measure nothing")
    parser.set_defaults(command=_ablate)


def _ablate(options: argparse.Namespace) -> int:
    from ..studies.ablate import run, techniques

    if options.list:
        for name, technique in techniques.TECHNIQUES.items():
            print(f"{name:<17} {technique.what}")
        return 0
    run.check(options.only, options.minutes)
    run.run(config_of(options), options.only, options.minutes, options.to, options.anew)
    return 0

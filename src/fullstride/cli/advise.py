"""fullstride advise."""

import argparse
import math
from typing import Any

from .arguments import number, seconds
from .studies import add_command, config_of

grams = number("grams of CO2 a kWh, 0 or more", lambda x: 0 <= x < math.inf)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "advise",
        help="what a recipe's step takes here, what bounds it, and what to change",
        description="Predicts time, memory and, where it can be measured, energy of a training step on this CPU, from"
        " what the model computes and how fast this machine is at that, checks it by a short run, names the bottleneck"
        " and predicts what changes would bring. A CUDA or MPS device, if there is one, is measured against the CPU.",
    )
    parser.add_argument(
        "--seconds", metavar="S", type=seconds, default=15.0, help="of the short run's steps (default: 15)"
    )
    parser.add_argument("--no-check", action="store_true", help="leave the short run out: a prediction alone")
    parser.add_argument(
        "--carbon", metavar="G", type=grams, help="grams of CO2 a kWh, for a figure where energy is measured"
    )
    parser.set_defaults(command=_advise)


def _advise(options: argparse.Namespace) -> int:
    config = config_of(options)
    from ..studies.advise import run

    run.run(config, options.seconds, not options.no_check, options.carbon, options.to, options.anew)
    return 0

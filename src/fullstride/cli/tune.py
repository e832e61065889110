"""fullstride tune."""

import argparse
import math
from typing import Any

from ..studies.tune import spaces
from . import studies
from .arguments import number


def add(commands: Any) -> None:
    parser = studies.add_command(
        commands,
        "tune",
        help="the settings that make a recipe fast on this machine",
        description="Tries threads, micro-batch x accumulation at the same effective batch, data workers, precision,"
        " several processes and overlap, each trial training for some seconds, and keeps what is faster than the recipe"
        " as it is. With --search also hyper-parameters, on validation loss at equal time. Writes a config that"
        " `fullstride train --config` takes.",
    )
    parser.add_argument(
        "--minutes", metavar="M", type=number("minutes above 0", lambda x: 0 < x < math.inf), default=10.0,
        help="for everything (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--search", metavar="NAMES", type=_names, default=(),
        help=f"hyper-parameters, too: any of {','.join(spaces.NAMES)} (needs the extra tune)",
    )  # fmt: skip
    parser.set_defaults(command=_tune)


def _names(text: str) -> tuple[str, ...]:
    try:
        return spaces.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tune(options: argparse.Namespace) -> int:
    config = studies.config_of(options)
    from ..studies.tune import run

    run.run(config, options.minutes, options.search, options.to, options.anew)
    return 0

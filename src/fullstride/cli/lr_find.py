"""fullstride lr-find."""

import argparse
import math
from typing import Any

from ..studies.lr_find.span import REPEATS, STEPS
from .arguments import number, positive
from .studies import add_command, config_of

rate = number("a learning rate above 0", lambda x: 0 < x < math.inf)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "lr-find",
        help="a learning rate for a recipe, with a picture",
        description="Trains with rates that grow from step to step, until that fails, several times with other weights"
        " and data in another order, and suggests a rate from the loss. With --check it then trains the recipe with"
        " that rate and with its own. Leaves a page, a picture and found.yaml for `fullstride train --config`.",
    )
    parser.add_argument("--lowest", metavar="RATE", type=rate, help="begin here (default: the recipe's rate / 1000)")
    parser.add_argument("--highest", metavar="RATE", type=rate, help="end here (default: the recipe's rate x 100)")
    parser.add_argument(
        "--steps", metavar="N", type=positive, default=STEPS,
        help=f"of a range test, each with a rate of its own (default: {STEPS})",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", metavar="N", type=positive, default=REPEATS, help=f"range tests (default: {REPEATS})"
    )
    parser.add_argument(
        "--check", metavar="STEPS", type=positive, nargs="?", const=0,
        help="train so many steps with both rates, or all of the recipe's, and compare validation losses",
    )  # fmt: skip
    parser.add_argument(
        "--check-seeds", metavar="N", type=positive, default=1, help="pairs of trainings with --check (default: 1)"
    )
    parser.set_defaults(command=_lr_find)


def _lr_find(options: argparse.Namespace) -> int:
    config = config_of(options)
    from ..studies.lr_find import run
    from ..studies.lr_find.span import Span

    span = Span.around(config.optimizer.lr, options.lowest, options.highest, options.steps)
    found = run.run(config, span, options.repeats, options.check, options.check_seeds, options.to, options.anew)
    return 0 if found["rate"] is not None else 1

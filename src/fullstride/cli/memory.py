"""fullstride memory."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    memory = commands.add_parser(
        "memory",
        help="what batches of several sizes cost in memory, measured",
        usage="fullstride memory RECIPE [options] [--any.field VALUE ...]\n"
        "       fullstride memory --config FILE [options] [--any.field VALUE ...]",
        description="Trains two steps with each batch, in a process of its own, and shows the bytes of parameters,"
        " optimizer, gradients and activations, and the most that the process held.",
        epilog="Every field of the config is an option: `fullstride train RECIPE --help` lists them. With --json"
        " RUN/memory.json the report of that run shows the outcome.",
        allow_abbrev=False,  # what is not known here is a field of the config
    )
    memory.add_argument("--config", metavar="FILE", type=Path, help="YAML with a line 'recipe: NAME' and fields")
    memory.add_argument(
        "--batches", metavar="LIST", type=_batches, default="16,32,16x2",
        help="samples at once, or samples x micro-batches, with commas between (default: 16,32,16x2)",
    )  # fmt: skip
    memory.add_argument("--json", metavar="FILE", type=Path, help="write the outcome there, too")
    memory.set_defaults(command=_memory, takes_fields=True)


def _batches(text: str) -> Any:
    from ..bench.memory import benchmark

    try:
        return benchmark.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _memory(options: argparse.Namespace) -> int:
    from .train import configure, recipe_of

    recipe = recipe_of(options)
    if recipe is None and options.config is None:
        options.parser.error("expected a recipe or --config FILE; `fullstride recipes` lists the recipes")
    config = configure(recipe, options.config, options.fields, options.parser)
    from ..bench.memory import benchmark

    content = benchmark.run(config, options.batches, options.json)
    return 0 if any("failed" not in batch for batch in content["batches"]) else 1

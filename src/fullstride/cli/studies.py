"""What the commands that leave a study (bench/study.py) have in common: a recipe and its fields, --to, --anew."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..recipes.config import Config


def add_command(commands: Any, name: str, help: str, description: str) -> argparse.ArgumentParser:
    """A parser to which the command adds its own options; then parser.set_defaults(command=...)."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        usage=f"fullstride {name} RECIPE [options] [--any.field VALUE ...]\n"
        f"       fullstride {name} --config FILE [options] [--any.field VALUE ...]",
        description=description,
        epilog="Every field of the config is an option: `fullstride train RECIPE --help` lists them. Stopped, the same"
        " command goes on where it was.",
        allow_abbrev=False,  # what is not known here is a field of the config
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML with a line 'recipe: NAME' and fields")
    parser.add_argument(
        "--to", metavar="FOLDER", type=Path, help=f"for what is found (default: studies/{name}-RECIPE)"
    )
    parser.add_argument("--anew", action="store_true", help="begin again; what there was is kept under another name")
    parser.set_defaults(takes_fields=True)
    return parser


def config_of(options: argparse.Namespace) -> "Config":
    """What the recipe or the file and the fields come to. No torch."""
    from .train import configure, recipe_of

    recipe = recipe_of(options)
    if recipe is None and options.config is None:
        options.parser.error("expected a recipe or --config FILE; `fullstride recipes` lists the recipes")
    return configure(recipe, options.config, options.fields, options.parser)

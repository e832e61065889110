"""fullstride completion: what the shells are told. shells.py writes their scripts.

Commands and options are read from the parser, fields from the recipes, when the script is made. So pressing Tab starts
no Python; a new version of the package wants a new script, which is why it is best sourced when the shell starts.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh", "fish")
FILE, FOLDER = "file", "folder"  # values that the shell looks up


@dataclass(frozen=True)
class Option:
    name: str
    help: str
    kind: str | None = None  # FILE, FOLDER; None: nothing to look up
    words: tuple[str, ...] = ()  # the values there are
    is_flag: bool = False


@dataclass(frozen=True)
class Command:
    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]  # what its argument can be; with fields, the recipes
    takes_run: bool
    takes_fields: bool
    takes_file: bool  # or a run


@dataclass(frozen=True)
class Table:
    commands: tuple[Command, ...]
    fields: dict[str, tuple[Option, ...]]  # by recipe


def add(commands: Any) -> None:
    completion = commands.add_parser(
        "completion",
        help="a script that completes commands and options in your shell",
        description="Prints a script for your shell. It completes commands, options, recipes, config fields and run"
        " folders.",
        epilog="bash  add to ~/.bashrc:      source <(fullstride completion bash)\n"
        "zsh   add to ~/.zshrc:       source <(fullstride completion zsh)   after compinit\n"
        "fish  add to config.fish:    fullstride completion fish | source",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    completion.set_defaults(command=_completion)


def _completion(options: argparse.Namespace) -> int:
    from . import shells

    print(shells.script(options.shell, table()))
    return 0


def table() -> Table:
    from .. import recipes
    from . import command, fields

    _, commands = command.build()
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    known = tuple(_command(name, helps[name], parser, recipes.NAMES) for name, parser in commands.choices.items())
    by_recipe = {
        name: tuple(
            Option(spelling, field.help, FOLDER if field.name == "data.path" else None, tuple(field.choices),
                   field.hint is bool)
            for field in fields.fields(recipes.get(name)()) for spelling in field.options
        )
        for name in recipes.NAMES
    }  # fmt: skip
    return Table(known, by_recipe)


def _command(name: str, help: str, parser: argparse.ArgumentParser, recipes: tuple[str, ...]) -> Command:
    options: list[Option] = []
    words: tuple[str, ...] = ()
    takes_fields, takes_run = bool(parser.get_default("takes_fields")), False
    takes_file = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words = tuple(action.choices)
            for inner in action.choices.values():
                options += [option for option in map(_option, inner._actions) if option not in options]
        elif action.option_strings:
            options.append(_option(action))
        elif action.metavar in ("RUN", "RUN_OR_FILE"):
            takes_run, takes_file = True, action.metavar != "RUN"
        elif action.choices:
            words = tuple(action.choices)
        elif name == "data":
            from ..data import sources

            words = sources.NAMES
    return Command(
        name, help, tuple({o.name: o for o in options}.values()), recipes if takes_fields else words, takes_run,
        takes_fields, takes_file,
    )  # fmt: skip


def _option(action: argparse.Action) -> Option:
    kind = {"DIR": FOLDER, "FILE": FILE}.get(str(action.metavar)) if action.type is Path else None
    words = tuple(map(str, action.choices or ()))
    name = next(spelling for spelling in action.option_strings if spelling.startswith("--"))
    return Option(name, action.help or "", kind, words, action.nargs == 0)

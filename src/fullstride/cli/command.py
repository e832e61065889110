"""The `fullstride` command. Commands import what they need when they run: help must not wait for torch."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..train.errors import BAD_INPUT, FAILED, RunEnded
from . import (
    ablate,
    advise,
    bench,
    completion,
    data,
    generate,
    lr_find,
    machine,
    memory,
    overview,
    processes,
    runs,
    search,
    speak,
    train,
    tune,
)
from .arguments import Parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; train/errors.py says what they mean."""
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
    except SystemExit:  # the parser's, after --help and the like
        _write_out()
        raise
    return code if _write_out() else code or FAILED


def _run(arguments: list[str]) -> int:
    warnings.formatwarning = lambda message, *_, **__: f"{message}\n"  # one line, not a place in the source
    try:
        options = _parse(arguments)
        options.arguments = arguments
        code: int = options.command(options)
        return code
    except RunEnded as error:
        return error.code if error.is_told_elsewhere else _say(error, error.code)
    except (ValueError, FileNotFoundError) as error:
        return _say(error, BAD_INPUT)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        return FAILED
    except OSError as error:
        return _say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error, FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", 130)


def build() -> tuple[argparse.ArgumentParser, Any]:
    """The parser, and the action that holds those of the commands."""
    parser = Parser(prog="fullstride", description="Neural-network training on CPUs at full stride.")
    parser.add_argument("-V", "--version", action="version", version=f"fullstride {__version__}")
    parser.set_defaults(command=_no_command)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    groups = (
        train, runs, overview, generate, speak, search, data, machine, memory, bench, ablate, tune, advise, lr_find,
        completion,
    )  # fmt: skip
    for group in groups:
        group.add(commands)
    return parser, commands


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser, _ = build()
    options, rest = parser.parse_known_args(arguments)
    if getattr(options, "takes_fields", False):
        options.fields = rest  # which ones there are is the recipe's to say
    elif rest:
        options.parser.refuse(rest)
    return options


def _no_command(options: argparse.Namespace) -> int:
    options.parser.print_help(sys.stderr)
    return BAD_INPUT


def _write_out() -> bool:
    """Whether the output was taken. Left for Python to write at exit, it would complain of a reader that has gone."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest, and what follows it
        if not isinstance(error, BrokenPipeError):
            _say(f"cannot write the output: {error.strerror}", FAILED)
        return False
    return True


def _say(error: object, code: int) -> int:
    if str(error) and processes.is_first_to_say(str(error)):
        print(f"fullstride: {error}", file=sys.stderr)
    return code

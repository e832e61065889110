"""fullstride train, resume, recipes."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run_folder.folder import RunFolder, make_named
from ..train.errors import EXIT_CODES, FOLDER_IN_USE, RunEnded
from . import processes
from .arguments import positive
from .runs import needs_extra, write_report

if TYPE_CHECKING:
    from ..recipes.config import Config
    from ..train.trainer import Result, Trainer

_EXIT_CODES = "exit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())


def add(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train a recipe, or what a config file says",
        usage="fullstride train RECIPE [options] [--any.field VALUE ...]\n"
        "       fullstride train --config FILE [options] [--any.field VALUE ...]",
        description="Trains and leaves everything in one run folder: config, metrics, checkpoints, report.\n"
        "A run that was stopped or killed goes on with `fullstride resume RUN`.",
        epilog="Every field of the config is an option: `fullstride train mlp --help` lists those of a recipe,\n"
        f"`fullstride recipes` the recipes.\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,  # what is not known here is a field of the config
    )
    train.add_argument("-h", "--help", action="store_true", help="this text; after a recipe, its fields and defaults")
    train.add_argument("--config", metavar="FILE", type=Path, help="YAML with a line 'recipe: NAME' and fields")
    train.add_argument(
        "--run", "--folder", metavar="DIR", type=Path,
        help="the run folder (default: a new one in runs/); say --folder under torchrun, which takes --run for its own",
    )  # fmt: skip
    train.add_argument("--dry-run", action="store_true", help="only show model size, memory and time to expect")
    train.set_defaults(command=_train, takes_fields=True)

    resume = commands.add_parser(
        "resume",
        help="go on with a run from its newest checkpoint",
        description="Goes on with a run as if it had never stopped: on the same machine, with the same threads and\n"
        "versions bit for bit. What differs is said.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # processes of --nproc are not given it: see processes.py, which looks for the whole word
    )
    resume.add_argument("folder", metavar="RUN", type=Path, help="the run folder")
    for command in (train, resume):
        command.add_argument("--no-report", action="store_true", help="leave the report to `fullstride report RUN`")
        command.add_argument("--quiet", action="store_true", help="print warnings and the result alone")
        command.add_argument("--nproc", metavar="N", type=positive, help="so many processes here train together")
        command.add_argument(
            "--restarts", metavar="N", type=positive, help="with --nproc: go on so often if one of them dies"
        )
    resume.set_defaults(command=_resume)

    recipes = commands.add_parser("recipes", help="list the recipes", description="Lists what can be trained.")
    recipes.set_defaults(command=_recipes)


def _train(options: argparse.Namespace) -> int:
    recipe = recipe_of(options)
    if options.help and (recipe or options.config):
        return _help(recipe, options)
    if options.help:
        options.parser.print_help()
        return 0
    if recipe is None and options.config is None:
        return _no_recipe(options.fields)
    config = configure(recipe, options.config, options.fields, options.parser)
    if options.dry_run:
        from ..train import dry_run

        print(dry_run.as_text(config, dry_run.estimate(config)))
        return 0
    processes.check(options)
    if options.nproc is not None:
        return processes.launch(options, options.run or make_named(config.recipe))
    with _expected_errors():
        run = processes.place(options.run, config.recipe)
        processes.pin()
        with interrupts_held():
            from ..train.trainer import Trainer  # loads torch, which bad input need not wait for

        with processes.joined(config.distributed) as world:
            goes_on = processes.goes_on(world, run)
            return _fit(Trainer.resume(run) if goes_on and run else Trainer(config, run), options)


def recipe_of(options: argparse.Namespace) -> str | None:
    """The recipe, which stands before all fields, taken from them."""
    has_one = options.fields and not options.fields[0].startswith("-")
    return options.fields.pop(0) if has_one else None


def configure(
    recipe: str | None, file: Path | None, words: list[str], parser: argparse.ArgumentParser | None = None
) -> "Config":
    """The config that a recipe or a file and the options after it come to. No torch.

    parser: of the command, one of whose own options may have been meant by a word that is no field.
    """
    from .. import recipes
    from ..recipes import config_files
    from . import fields

    if recipe is not None and file is not None:
        raise ValueError(f"expected a recipe or --config, got both {recipe} and {file}; the file names its recipe")
    if recipe is not None:
        base, prog = recipes.get(recipe)(), f"fullstride train {recipe}"
    else:
        assert file is not None
        base = config_files.read(file)
        prog = f"fullstride train {base.recipe}"
    others = [] if parser is None else [name for name in parser._option_string_actions if name.startswith("--")]
    config = fields.apply(base, words, prog, others)
    own = recipes.get(base.recipe)().optimizer
    if config.optimizer.name == own.name != base.optimizer.name:  # back to the one that the recipe chose its values for
        config = fields.apply(base.replace(optimizer=own.chosen()), words, prog, others)
    return config


def _help(recipe: str | None, options: argparse.Namespace) -> int:
    from .. import recipes
    from . import fields

    config = configure(recipe, options.config, [])
    prog = f"fullstride train {recipe or f'--config {options.config}'}"
    more = "Besides these fields there are --run DIR, --dry-run and others: see `fullstride train --help`."
    fields.print_help(config, prog, f"{recipes.describe(config.recipe)}\n\n{more}")
    return 0


def _no_recipe(words: list[str]) -> int:
    if words:
        raise ValueError(f"expected a recipe before {words[0]}, as in `fullstride train mlp {words[0]} ...`")
    print("Which recipe? fullstride train RECIPE, where RECIPE is one of\n")
    _recipes()
    print("\n`fullstride train RECIPE --help` lists what can be set, --dry-run shows what to expect.")
    return 2


def _resume(options: argparse.Namespace) -> int:
    processes.check(options)
    with _expected_errors():
        if not processes.is_one_of_several():
            RunFolder.read(options.folder)  # whether it is one; bad input need not wait for torch
        if options.nproc is not None:
            return processes.launch(options, options.folder)
        processes.pin()
        with interrupts_held():
            from ..train.trainer import Trainer

        with processes.joined(processes.wish_of(options.folder)):
            return _fit(Trainer.resume(options.folder), options)


def _fit(trainer: "Trainer", options: argparse.Namespace) -> int:
    trainer.quiet = options.quiet
    result = trainer.fit()
    if not trainer.together.writes:
        return 0
    report = None
    try:
        report = None if options.no_report else write_report(result.run)
    except (OSError, ValueError) as error:  # what was trained is what counts
        print(f"fullstride: no report: {error}", file=sys.stderr)
    print("\n".join(_ending(result, report, trainer.config)))
    return 0


def _ending(result: "Result", report: Path | None, config: "Config") -> list[str]:
    """What was done and where everything is."""
    lines = [f"done    {result.steps} steps, {_duration(result.seconds)} in this process"]
    if result.stopped:
        lines[0] += f"; stopped early: {result.stopped}"
    if result.best:
        scores = {name: value for name, value in result.best.items() if isinstance(value, float) and name != "seconds"}
        lines.append(f"best    step {result.best['step']}: " + ", ".join(f"{n} {v:.4g}" for n, v in scores.items()))
    if report:
        lines.append(f"report  {report}")
    lines.append(f"run     {result.run}")
    return lines + [f"{'' if i else 'next':<7} {command}" for i, command in enumerate(config.next_commands(result.run))]


def _recipes(options: argparse.Namespace | None = None) -> int:
    from .. import recipes

    width = max(map(len, recipes.NAMES))
    for name in recipes.NAMES:
        print(f"  {name:<{width}}  {recipes.describe(name)}")
    return 0


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C counts at the end: torch, interrupted while it loads numpy, goes on without it and fails much later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _expected_errors() -> Iterator[None]:
    """Turns what can happen to anybody into one line and its exit code."""
    from ..run_folder.lock import FolderInUse

    try:
        yield
    except FolderInUse as error:
        raise _ended(str(error), FOLDER_IN_USE) from None
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "tensorboard":
            raise ValueError(needs_extra(error, "tensorboard")) from None
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            line = "not enough memory: lower --micro-batch and raise --accumulate, or --checkpoints.no-background"
            raise _ended(f"{line}; --dry-run shows what to expect", RunEnded.code) from None
        raise


def _ended(line: str, code: int) -> RunEnded:
    error = RunEnded(line)
    error.code = code
    return error


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"

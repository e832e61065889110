"""The `fullstride` command. Commands import what they need when they run: help must not wait for torch."""

import argparse
import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done. 1: failed. 2: bad input. 130: interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    warnings.formatwarning = lambda message, *_, **__: f"{message}\n"  # one line, not a place in the source
    try:
        return options.run(options)
    except ValueError as error:
        print(f"fullstride: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader, `head` say, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"fullstride: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fullstride: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fullstride", description="Neural-network training on CPUs at full stride.")
    parser.add_argument("--version", action="version", version=f"fullstride {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser(
        "info",
        help="what this machine is and what it can reach",
        description="Shows the CPU, the cores and memory this process may use, the kernels chosen, what torch brings,"
        " and measured rates of matrix products and memory. Takes about five seconds.",
    )
    info.add_argument("--json", action="store_true", help="print the facts as JSON")
    info.add_argument("--no-measure", action="store_true", help="leave the measured rates out")
    info.set_defaults(run=_info)

    bench = commands.add_parser("bench", help="measure", description="Measurements.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    kernels = subjects.add_parser(
        "kernels",
        help="every kernel against torch and against the memory's bandwidth",
        description="Measures every kernel against torch in the same process, in turns, and against the bandwidth of"
        " the memory. Memory is allocated as in any process; with --keep-heap both sides are spared the page faults of"
        " new tensors. A missed target is named at the end and does not change the exit code.",
    )
    kernels.add_argument("--json", metavar="FILE", type=Path, help="write conditions and results there, too")
    kernels.add_argument("--only", metavar="NAME", action="append", default=[], help="only this op; may be repeated")
    kernels.add_argument("--rounds", metavar="N", type=_positive, default=7, help="turns of each side (default: 7)")
    kernels.add_argument("--keep-heap", action="store_true", help="keep freed memory instead of giving it back")
    kernels.add_argument("--isa", metavar="NAME", help="the kernels of this variant instead of the best one")
    kernels.set_defaults(run=_bench_kernels)

    step = subjects.add_parser(
        "step",
        help="a training step against stock PyTorch",
        description="Measures training steps of an MLP, a Llama and a BERT against stock PyTorch as it comes and at its"
        " best, each side in its own process, in turns. Trying torch.compile takes most of the time. A missed target is"
        " named at the end and does not change the exit code.",
    )
    step.add_argument("--model", metavar="NAME", nargs="+", default=[], help="only these of mlp, llama, bert")
    step.add_argument("--accumulate", metavar="N", type=_positive, help="micro-batches in a step")
    step.add_argument("--rounds", metavar="N", type=_positive, help="turns of each side (default: 7, or 2 if --quick)")
    step.add_argument(
        "--precision", action="append", default=[], choices=["auto", "fp32", "bf16", "fp16"],
        help="of Fullstride; may be repeated (default: auto, and fp32 for the mlp)",
    )  # fmt: skip
    step.add_argument("--json", metavar="FILE", type=Path, help="write conditions and results there, too")
    step.add_argument("--quick", action="store_true", help="one step a turn, and no trial of torch.compile")
    step.add_argument("--profile", action="store_true", help="show where the time of a step goes, on every side")
    step.set_defaults(run=_bench_step)
    return parser


def _info(options: argparse.Namespace) -> int:
    from .machine import info

    facts = info.collect(measure=not options.no_measure)
    print(json.dumps(facts, indent=2) if options.json else info.as_text(facts))
    return 0


def _bench_kernels(options: argparse.Namespace) -> int:
    from .bench import rows
    from .machine import memory

    rows.check_names(options.only)
    if memory.heap_kept() and not options.keep_heap:
        _start_anew(options.arguments, FULLSTRIDE_HEAP="0")
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(_json_file(options.json)) if options.json else {}

        from . import _native  # these load torch, which bad input need not wait for
        from .bench import conditions, kernels, table

        if options.isa and not _native.available():
            raise ValueError("--isa chooses among the kernels, and there is no kernel library; leave it out")
        if options.isa:
            stack.enter_context(_native.use_isa(options.isa))
        facts = conditions.conditions(memory.keep_heap() if options.keep_heap else None)
        print(f"{conditions.as_text(facts)}\n\n{table.LEGEND}")
        results: list[kernels.Result] = []
        for result in kernels.run(options.only, options.rounds, heap_kept=options.keep_heap):
            if not results or results[-1].op != result.op:
                print(f"\n{result.op}")
            print("\n".join(table.lines(result)), flush=True)
            results.append(result)
        missed = table.missed(results)
        print("\n" + ("missed:\n  " + "\n  ".join(missed) if missed else "no target missed"))
        report.update(table.as_json(facts, results))
    return 0


def _bench_step(options: argparse.Namespace) -> int:
    from .bench import step_cases

    cases = step_cases.choose(options.model, options.accumulate, options.precision)
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(_json_file(options.json)) if options.json else {}

        from .bench import conditions, step, step_table  # load torch, which bad input need not wait for

        facts = conditions.conditions() | {"heap": "kept by Fullstride, as it comes for stock PyTorch"}
        print(f"{conditions.as_text(facts)}\n\n{step_table.LEGEND}", flush=True)
        results: list[step.Result] = []
        rounds = options.rounds or (2 if options.quick else 7)
        for result in step.run(cases, rounds, options.quick, options.profile):
            print("\n" + "\n".join(step_table.lines(result)), flush=True)
            results.append(result)
        missed = step_table.missed(results)
        print("\n" + ("missed:\n  " + "\n  ".join(missed) if missed else "no target missed"))
        report.update(step_table.as_json(facts, results))
    return 0


def _start_anew(arguments: Sequence[str], **environment: str) -> NoReturn:
    """The same command instead of this one: what malloc was told when the package was imported cannot be taken back."""
    sys.stdout.flush()
    command = [sys.executable, "-m", __package__, *arguments]
    os.execve(sys.executable, command, os.environ | environment)


@contextlib.contextmanager
def _json_file(path: Path) -> Iterator[dict[str, Any]]:
    """A dictionary that becomes the file when all went well. Whether it can be written is found out at once."""
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is not a regular file; give --json a file name")
    partial = path.with_name(path.name + ".partial")
    try:
        file = partial.open("w")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; give --json a file that can be written") from None
    content: dict[str, Any] = {}
    try:
        with file:
            yield content
            json.dump(content, file, indent=2)
            file.write("\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return number

"""fullstride compare, bench kernels, bench step."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..bench.step.cases import MODELS
from . import studies
from .arguments import json_file, positive, seconds


def add(commands: Any) -> None:
    compare = studies.add_command(
        commands,
        "compare",
        "a recipe's training steps against stock PyTorch",
        "Trains the same model on the same data from the same weights with Fullstride and with plain PyTorch, each in"
        " its own process, in turns. Shows speed, memory and losses of both, at the same step and at the same time.",
    )
    compare.add_argument(
        "--seconds", metavar="S", type=seconds, default=60.0, help="of steps, of all sides together (default: 60)"
    )
    compare.add_argument(
        "--best", action="store_true", help="against stock PyTorch at its best, too; trying torch.compile takes minutes"
    )
    compare.add_argument("--json", metavar="FILE", type=Path, help="write the outcome there, too")
    compare.set_defaults(command=_compare)

    bench = commands.add_parser("bench", help="measure", description="Measurements.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    kernels = subjects.add_parser(
        "kernels",
        help="every kernel against torch, its portable form, and what the machine reaches",
        description="Measures every kernel against torch and against its own portable variant in the same process, in"
        " turns, and tells GFLOP/s, GB/s or parameters/s and what share of the machine's own rate they are. Memory"
        " is allocated as in any process; with --keep-heap both sides are spared the page faults of new tensors. A"
        " missed target is named at the end and does not change the exit code.",
    )
    kernels.add_argument("--json", metavar="FILE", type=Path, help="write conditions and results there, too")
    kernels.add_argument("--only", metavar="NAME", action="append", default=[], help="only this op; may be repeated")
    kernels.add_argument("--rounds", metavar="N", type=positive, default=7, help="turns of each side (default: 7)")
    kernels.add_argument("--keep-heap", action="store_true", help="keep freed memory instead of giving it back")
    kernels.add_argument("--isa", metavar="NAME", help="the kernels of this variant instead of the best one")
    kernels.set_defaults(command=_bench_kernels)

    step = subjects.add_parser(
        "step",
        help="a training step against stock PyTorch",
        description="Measures training steps of an MLP, a Llama, a BERT and a FastSpeech 2 against stock PyTorch as it"
        " comes and at its best, each side in its own process, in turns. Trying torch.compile takes most of the time. A"
        " missed target is named at the end and does not change the exit code.",
    )
    step.add_argument("--model", metavar="NAME", nargs="+", default=[], help=f"only these of {', '.join(MODELS)}")
    step.add_argument("--accumulate", metavar="N", type=positive, help="micro-batches in a step")
    step.add_argument("--rounds", metavar="N", type=positive, help="turns of each side (default: 7, or 2 if --quick)")
    step.add_argument(
        "--precision", action="append", default=[], choices=["auto", "fp32", "bf16", "fp16"],
        help="of Fullstride; may be repeated (default: auto, and fp32 for the mlp)",
    )  # fmt: skip
    step.add_argument("--json", metavar="FILE", type=Path, help="write conditions and results there, too")
    step.add_argument("--quick", action="store_true", help="one step a turn, and no trial of torch.compile")
    step.add_argument("--profile", action="store_true", help="show where the time of a step goes, on every side")
    step.set_defaults(command=_bench_step)


def _compare(options: argparse.Namespace) -> int:
    config = studies.config_of(options)
    from ..bench.compare import benchmark as compare

    compare.run(config, options.seconds, options.best, options.json, options.to, options.anew)
    return 0


def _bench_kernels(options: argparse.Namespace) -> int:
    from ..bench.kernels import rows
    from ..machine import memory

    rows.check_names(options.only)
    if memory.heap_kept() and not options.keep_heap:
        _start_anew(options.arguments, FULLSTRIDE_HEAP="0")
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(json_file(options.json)) if options.json else {}

        from .. import _native  # these load torch, which bad input need not wait for
        from ..bench import conditions
        from ..bench.kernels import benchmark as kernels
        from ..bench.kernels import table

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
        return _end(table.as_json(facts, results), report)


def _bench_step(options: argparse.Namespace) -> int:
    from ..bench.step import cases as step_cases

    cases = step_cases.choose(options.model, options.accumulate, options.precision)
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(json_file(options.json)) if options.json else {}

        from ..bench import conditions  # load torch, which bad input need not wait for
        from ..bench.step import benchmark as step
        from ..bench.step import table as step_table
        from ..bench.step.results import Result

        facts = conditions.conditions() | {"heap": "kept by Fullstride, as it comes for stock PyTorch"}
        print(f"{conditions.as_text(facts)}\n\n{step_table.LEGEND}", flush=True)
        results: list[Result] = []
        rounds = options.rounds or (2 if options.quick else 7)
        for result in step.run(cases, rounds, options.quick, options.profile):
            print("\n" + "\n".join(step_table.lines(result)), flush=True)
            results.append(result)
        return _end(step_table.as_json(facts, results), report)


def _end(content: dict[str, Any], report: dict[str, Any]) -> int:
    missed = content["missed"]
    print("\n" + ("missed:\n  " + "\n  ".join(missed) if missed else "no target missed"))
    report.update(content)
    return 0


def _start_anew(arguments: Sequence[str], **environment: str) -> NoReturn:
    """The same command instead of this one: what malloc was told when the package was imported cannot be taken back."""
    sys.stdout.flush()
    command = [sys.executable, "-m", "fullstride", *arguments]
    os.execve(sys.executable, command, os.environ | environment)

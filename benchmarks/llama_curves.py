"""Validation loss over time: a recipe trained by Fullstride, by stock PyTorch as it comes, and by it at its best.

    python -m benchmarks.llama_curves llama [--seconds 900] [--every 50] [--sides fullstride,stock,best]
        [--json FILE] [--svg FILE] [--merge FILE ...] [--scores] [--any.field VALUE ...]

Each side is a process of its own; all start from the same weights and take the same steps of the recipe, on the same
data at the same learning rates (fullstride.bench.compare.folder). They take turns of some seconds, so that what else
the machine does meets all of them. The clock of a side counts its own training steps and nothing else: neither the
evaluations, which each side makes of its own model on the held-out data, nor what torch.compile takes, which is told
apart. With --scores the task of the recipe scores the weights of each side, too, in fp32 and in this process: recall,
say. A side ends at the recipe's last step, or when --seconds of its clock are over. Sides that were run at another
time are taken from their files by --merge, to be compared at the same step; with --sides none nothing is trained.

The file is written anew after every evaluation, and the program outlives its terminal.
"""

import argparse
import contextlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullstride.bench.compare import benchmark as compare
from fullstride.bench.compare import table as compare_table
from fullstride.bench.step import benchmark as step
from fullstride.bench.step import process as step_process
from fullstride.bench.step import stock as step_stock
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT, Case
from fullstride.bench.step.process import Side, SideFailed
from fullstride.bench.step.table import finite
from fullstride.cli.arguments import Parser, positive, seconds
from fullstride.cli.train import configure
from fullstride.recipes import strict

from . import llama_curves_table as table

if TYPE_CHECKING:
    from fullstride.bench.compare.folder import Folder
    from fullstride.recipes.config import Config

SIDES = ("fullstride", "stock", "best")
SETTINGS = ("autocast", "fused", "compile")  # of stock PyTorch
Score = Callable[[Side], dict[str, float]]
_MOST_BYTES = 64 << 20  # of data at once: it lies in the memory of the side


class Runner:
    """A side, its clock and its curve."""

    def __init__(self, kind: str, side: Side, score: Score | None = None) -> None:
        self.kind, self.side, self._score = kind, side, score
        self.seconds = self.compile_seconds = 0.0
        self.step_seconds = 0.0  # of the last ones
        self.points: list[dict[str, Any]] = []
        self._first = 0.0

    @property
    def steps(self) -> int:
        return len(self.side.losses)

    def train(self, num_steps: int) -> None:
        taken = self.side.run(num_steps)["seconds"]
        self.step_seconds = sum(taken) / len(taken)
        self.seconds += sum(taken)
        if self.steps == num_steps == 1:
            self._first = taken[0]
        elif self.side.config.get("compile") and not self.compile_seconds:
            self.compile_seconds = max(0.0, self._first - self.step_seconds)
            self.seconds -= self.compile_seconds

    def evaluate(self) -> None:
        since = self.points[-1]["step"] if self.points else 0
        trained = self.side.losses[since:]
        self.points.append({
            "step": self.steps, "seconds": self.seconds, "loss": finite(self.side.evaluate()),
            "train_loss": finite(sum(trained) / len(trained)),  # mean since the last
            **({} if self._score is None else {"scores": self._score(self.side)}),
        })  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        facts = self.side.facts
        return {
            "side": self.kind, "name": self.side.name, "precision": facts["precision"], "steps": self.steps,
            "seconds": self.seconds, "compile_seconds": self.compile_seconds,
            "units_per_second": facts["units"] * self.steps / self.seconds, "unit": facts["unit"],
            "peak_bytes": self.side.peaks[-1], "threads": facts["threads"], "explanation": facts["explanation"],
            "points": self.points,
        }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="llama_curves", description="Loss over time against stock PyTorch.", allow_abbrev=False,
        epilog="Every field of the config is an option: `fullstride train RECIPE --help` lists them.",
    )  # fmt: skip
    parser.add_argument("recipe", help="llama, llama-char, ...")
    parser.add_argument("--seconds", type=seconds, default=math.inf, help="of training of each side (default: no end)")
    parser.add_argument("--every", type=positive, default=100, help="steps between evaluations (default: 100)")
    parser.add_argument("--sides", type=_sides, default=SIDES, help=f"of {','.join(SIDES)}, or none (default: all)")
    parser.add_argument("--best", type=_settings, help=f"of {','.join(SETTINGS)}, instead of finding out by trial")
    parser.add_argument("--turn", type=seconds, default=10.0, help="seconds of a side before the next (default: 10)")
    parser.add_argument("--valid-batches", type=positive, help="of held-out data (default: all)")
    parser.add_argument("--scores", action="store_true", help="those of the recipe's evaluations, too")
    parser.add_argument("--merge", type=Path, action="append", default=[], help="sides of an earlier --json")
    parser.add_argument("--json", type=Path, help="written after every evaluation")
    parser.add_argument("--svg", type=Path, help="picture of the curves")
    options, fields = parser.parse_known_args(arguments)
    try:
        config = configure(options.recipe, None, fields, parser)
        for path in filter(None, (options.json, options.svg)):
            compare_table.check_writable(path)
        content = run(config, options)
    except (ValueError, OSError) as error:
        parser.exit(2, f"llama_curves: {error}\n")
    _say("\n" + "\n".join(table.lines(content["sides"])))
    if options.svg:
        from . import llama_curves_picture

        options.svg.write_text(llama_curves_picture.draw(content))


def run(config: "Config", options: argparse.Namespace) -> dict[str, Any]:
    mapping = strict.as_mapping(config)
    merged = [side for file in options.merge for side in table.read(file, mapping)]
    twice = {side["side"] for side in merged} & set(options.sides)
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))}: to be trained and in --merge as well; leave out one")
    content: dict[str, Any] = {"recipe": config.recipe, "config": mapping, "sides": merged}
    if options.sides:
        compare.check(config, 1.0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # also in the sides
        from fullstride.bench import conditions  # loads torch, which bad input need not wait for
        from fullstride.bench.compare.folder import Folder

        facts = conditions.conditions() | {"heap": "kept by Fullstride, as it comes for stock PyTorch"}
        content["conditions"] = facts
        _say(conditions.as_text(facts))
        with tempfile.TemporaryDirectory(prefix="fullstride-curves-") as path, contextlib.ExitStack() as stack:
            folder = Folder(Path(path), config)
            # Compiled code that an earlier run left would hide what compiling takes.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(path) / "trial")
            case = Case(config.recipe, config.accumulate, (config.precision,), recipe=path)
            wanted = _wanted(case, folder, options, content)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(path) / "compiled")
            content["valid_batches"] = folder.provide_valid(config.micro_batch, options.valid_batches)
            runners = []
            for kind, name, settings in wanted:
                score = _scorer(config, Path(path)) if options.scores else None
                runners.append(Runner(kind, Side(name, case.config(**settings)), score))
                stack.callback(runners[-1].side.close)
            _take_turns(runners, folder, config.task().length(config).steps, options, content, merged)
    elif options.json:
        compare_table.write(options.json, content)
    return content


def _scorer(config: "Config", folder: Path) -> Score:
    """What the task of the recipe says of a side's weights, in plain fp32."""
    from safetensors.torch import load_file

    from fullstride.train import evaluation

    task = config.task()
    model = task.build_model()

    def score(side: Side) -> dict[str, float]:
        path = folder / "scored.safetensors"
        side.save(path)
        side.rest()
        model.load_state_dict(load_file(path))
        found = evaluation.run(model, task, config.evaluation.batch)
        step_process.rest(os.getpid(), but=threading.get_native_id())
        return found

    return score


def _wanted(
    case: Case, folder: "Folder", options: argparse.Namespace, content: dict[str, Any]
) -> list[tuple[str, str, dict[str, Any]]]:
    """Kind, name and settings of each side."""
    known: dict[str, dict[str, Any]] = {"fullstride": {"fullstride": case.precisions[0]}, "stock": {}}
    names = {"fullstride": f"fullstride {case.precisions[0]}", "stock": STOCK_DEFAULT}
    if "best" in options.sides and options.best is not None:
        known["best"] = dict.fromkeys(options.best, True)
        names["best"] = f"{STOCK_BEST} ({' + '.join(options.best)})"
    elif "best" in options.sides:
        folder.provide(step_stock.MOST_TRIED)
        with contextlib.ExitStack() as stack:
            default = step.start(STOCK_DEFAULT, case.config(), stack)
            found, content["trials"] = step_stock.find_best(case, default, quick=False, stack=stack, say=_say)
            if found is None:
                raise SideFailed("stock PyTorch trains with none of its settings here; leave `best` out of --sides")
            known["best"] = {name: found.config[name] for name in SETTINGS if found.config.get(name)}
            names["best"] = found.name
    if "stock" in options.sides and known.get("best") == {}:
        _say(f"{STOCK_BEST} is {STOCK_DEFAULT}")
        del known["best"]
    return [(kind, names[kind], known[kind]) for kind in options.sides if kind in known]


def _take_turns(
    runners: list[Runner], folder: "Folder", last: int, options: argparse.Namespace, content: dict[str, Any],
    merged: list[dict[str, Any]],
) -> None:  # fmt: skip
    """Trains all to the end. `last`: step."""
    running = list(runners)
    while running:
        for runner in list(running):
            until = time.monotonic() + options.turn
            while True:
                num_steps = _num_steps(runner, folder.bytes_of_step, last, options)
                folder.hold(runner.steps, runner.steps + num_steps)
                runner.train(num_steps)
                ended = runner.steps >= last or runner.seconds >= options.seconds
                if ended or runner.steps % options.every == 0:
                    runner.evaluate()
                    _say(table.progress(runner.as_json()))
                    content["sides"] = merged + [each.as_json() for each in runners if each.points]
                    if options.json:
                        compare_table.write(options.json, content)
                if ended:
                    running.remove(runner)
                if ended or time.monotonic() >= until:
                    break
            runner.side.rest()


def _num_steps(runner: Runner, bytes_of_step: int, last: int, options: argparse.Namespace) -> int:
    """To take at once: the first two alone, whose difference is the compiling; then not beyond anything due."""
    if runner.steps < 2:
        return 1
    due = min(last, (runner.steps // options.every + 1) * options.every) - runner.steps
    left = min(options.turn, options.seconds - runner.seconds)
    return max(1, min(due, math.ceil(left / runner.step_seconds), _MOST_BYTES // bytes_of_step))


def _sides(text: str) -> tuple[str, ...]:
    return () if text == "none" else _chosen(text, SIDES)


def _settings(text: str) -> tuple[str, ...]:
    return _chosen(text, SETTINGS)


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = text.split(",")
    if not set(words) <= set(known):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}, got {text!r}")
    return tuple(word for word in known if word in words)


def _say(line: str) -> None:
    try:
        print(line, flush=True)  # also into a file
    except OSError:  # whoever read it is gone: the file of --json is what counts
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()

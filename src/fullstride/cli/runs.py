"""fullstride report, evaluate, export: what can be done with a run that is there."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="a run as one HTML file with pictures",
        description="Writes report.html into the run folder: curves, time, gradient norms, machine and settings. The"
        " run may still be in progress.",
    )
    report.add_argument("folder", metavar="RUN", type=Path, help="the run folder")
    report.set_defaults(command=_report)

    evaluate = commands.add_parser(
        "evaluate",
        help="score a checkpoint of a run on the held-out data",
        description="Scores a checkpoint on the held-out data of its run.",
    )
    evaluate.add_argument("folder", metavar="RUN", type=Path, help="the run folder")
    _add_checkpoint(evaluate)
    full = "measure what takes longer: how well a voice speaks, what a CLIP finds"
    evaluate.add_argument("--full", action="store_true", help=full)
    evaluate.add_argument("--json", action="store_true", help="print the scores as JSON")
    evaluate.set_defaults(command=_evaluate)

    export = commands.add_parser(
        "export",
        help="the weights of a run as files that other programs read",
        description="Writes the weights of a checkpoint, exact in fp32: as one .safetensors file, under the names that"
        " the model's state_dict() has; or, of a Llama, as a .bin for llama2.c with tokenizer.bin beside it, a .gguf"
        " for llama.cpp, or, if the name has no ending, a folder for Hugging Face's transformers. Of a voice, a name"
        " without an ending is a folder that has the model as plain PyTorch, which needs nothing of Fullstride, and"
        " .onnx a file for ONNX Runtime.",
    )
    export.add_argument("folder", metavar="RUN", type=Path, help="the run folder")
    export.add_argument(
        "--to", metavar="FILE", type=Path, required=True,
        help="a name that ends with .safetensors; of a Llama also .bin, .gguf, of a voice .onnx, or a folder",
    )  # fmt: skip
    _add_checkpoint(export)
    export.add_argument("--force", action="store_true", help="replace the file if it is there")
    export.set_defaults(command=_export)


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", metavar="WHICH", default="best", help="best (the default), last, or a step")


def _report(options: argparse.Namespace) -> int:
    _check_run(options.folder)
    print(write_report(options.folder))
    return 0


def write_report(run: Path) -> Path:
    """With what only the task can show, if there is a checkpoint and the data is where it was."""
    from .. import report

    sections: list[Any] = []
    try:
        from ..train import evaluation

        with warnings_alone():
            model, task, *_ = evaluation.load(run, "best")
            sections = task.sections(model, run)
    except (OSError, ValueError) as error:
        print(f"fullstride: the report shows no predictions: {error}", file=sys.stderr)
    try:
        return report.write(run, sections)
    except ModuleNotFoundError as error:
        raise ValueError(needs_extra(error, "report")) from None


def needs_extra(error: ModuleNotFoundError, extra: str) -> str:
    return f"{error.name} is not installed; get it with: pip install 'fullstride[{extra}]'"


def _evaluate(options: argparse.Namespace) -> int:
    _check_run(options.folder)
    check_which(options.checkpoint)
    from ..train import evaluation

    with warnings_alone():
        scores, rows = evaluation.assess(options.folder, options.checkpoint, options.full)
    if options.full and rows is None:
        raise ValueError("--full: expected a run whose recipe measures more than its evaluations; leave it out")
    if options.json:
        print(json.dumps(scores if rows is None else {**scores, "full": rows}))
        return 0
    step = scores.pop("step")
    print(f"step {step:g}: " + ", ".join(f"{name} {value:.6g}" for name, value in scores.items()))
    if rows:
        print("\n".join(_table(rows)))
    return 0


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The first column to the left, numbers to the right; a dash is what has no meaning there."""
    names = list(rows[0])
    cells = [["", *names[1:]], *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        yield f"{first:<{widths[0]}}" + "".join(f"  {x:>{n}}" for x, n in zip(others, widths[1:], strict=True))


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _export(options: argparse.Namespace) -> int:
    _check_run(options.folder)
    check_which(options.checkpoint)
    _check_target(options.to, options.force)
    from ..machine.memory import as_size
    from ..train import export

    with warnings_alone():
        if options.to.suffix != ".safetensors":
            step, files = export.export_as_others(options.folder, options.to, options.checkpoint, options.force)
            print("\n".join(f"{file}: of step {step}, {as_size(_size(file))}" for file in files))
            return 0
        step, num_tensors, size = export.export(options.folder, options.to, options.checkpoint, options.force)
    print(f"{options.to}: {num_tensors} tensors of step {step}, {as_size(size)}")
    return 0


def _size(path: Path) -> int:
    """Of a file, or of those in a folder."""
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size


@contextlib.contextmanager
def warnings_alone() -> Iterator[None]:
    """Of what the package logs, only warnings are for people who did not ask for a training."""
    from ..train.progress.terminal import set_up_logging

    undo = set_up_logging(None, quiet=True)
    try:
        yield
    finally:
        undo()


def _check_run(folder: Path) -> None:
    """Before torch is loaded."""
    from ..run_folder.folder import RunFolder

    RunFolder.read(folder)


def check_which(which: str) -> None:
    if which not in ("best", "last") and not which.isdecimal():
        raise ValueError(f"--checkpoint: expected best, last or the number of a step, got {which!r}")


def _check_target(path: Path, force: bool) -> None:
    is_folder = path.suffix == ""
    if path.exists() and not path.is_file() and not is_folder:
        raise ValueError(f"cannot write {path}: it is not a regular file")
    if path.exists() and not force and not (is_folder and path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"{path} is there already: give another name, or --force to replace it")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: the folder {path.parent} is not writable; name another")

"""Running the command in this process, and a run small enough for it."""

from pathlib import Path

from fullstride import cli

TINY = [
    "--model.hidden", "8", "--data.num-samples", "64", "--data.num-features", "6", "--data.num-classes", "3",
    "--data.num-valid", "16", "--data.workers", "0", "--micro-batch", "8", "--accumulate", "1", "--steps", "4",
    "--schedule.warmup", "0", "--evaluation.every", "2", "--checkpoints.every", "2", "--logging.every", "1",
    "--threads", "1", "--precision", "fp32",
]  # fmt: skip


def train(run: Path, *words: str, report: bool = False) -> int:
    """Drawing a report takes longer than the training here."""
    without = [] if report else ["--no-report"]
    return cli.main(["train", "mlp", "--run", str(run), "--quiet", *without, *TINY, *words])


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]

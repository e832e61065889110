"""A CLIP of a few weights that learns 24 drawn scenes."""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from fullstride import recipes
from fullstride.recipes.clip import ClipConfig
from fullstride.train.trainer import Trainer

MODEL = {
    "image": 16, "patch": 8, "vision_width": 16, "vision_layers": 1, "vision_heads": 2,
    "context": 40, "text_width": 16, "text_layers": 1, "text_heads": 2, "space": 8,
}  # fmt: skip


def tiny(**changes: object) -> ClipConfig:
    """Four steps of 6 pairs, with hard wrong captions from the start."""
    base = recipes.clip_small().replace(
        steps=4, micro_batch=6, model=MODEL, threads=1, precision="fp32",
        data={"num_train": 24, "num_valid": 10, "tokenizer": "characters", "workers": 0},
        negatives={"hard": 0.5, "start": 0, "full": 0}, schedule={"warmup": 0},
        evaluation={"every": 2, "batch": 5}, checkpoints={"every": 2}, logging={"every": 1},
    )  # fmt: skip
    return base.replace(**changes)


@functools.cache
def tiny_run() -> Path:
    """The folder of a run; made once a process. Do not write into it."""
    folder = Path(tempfile.mkdtemp(prefix="clip-run-"))
    atexit.register(_remove, folder, os.getpid())
    trainer = Trainer(tiny(), folder / "run")
    trainer.quiet = True  # whichever test asks first reads what is printed
    trainer.fit()
    return folder / "run"


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a fork
        shutil.rmtree(folder, ignore_errors=True)

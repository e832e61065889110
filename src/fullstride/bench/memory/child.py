"""The process of one batch: two real steps of a run, then what its memory was for, as a line of JSON.

    python -m fullstride.bench.memory.child FOLDER       with config.yaml in the folder, which gets a run beside it
"""

import json
import os
import sys
from pathlib import Path

from ...machine import memory
from ...recipes import config_files
from ...run_folder import metrics
from ...train.hooks import Hook
from ...train.trainer import Trainer


class _Leave(Hook):
    """Ends the process when the trainer has measured: nobody wants the checkpoint of a run that was broken off."""

    def __init__(self, before: int | None) -> None:
        self._before = before

    def on_step(self, trainer: Trainer, loss: float) -> None:
        rows = [row for row in metrics.read(trainer.folder.path) if row.get("event") == "memory"]
        if not rows:
            return
        found = {name: rows[-1][name] for name in rows[-1] if name not in ("kind", "attempt", "step", "event")}
        found |= {"before": self._before, "precision": trainer.environment["precision"]}
        print(json.dumps(found), flush=True)
        os._exit(0)


def main(folder: Path) -> None:
    config = config_files.read(folder / "config.yaml")
    before = memory.resident_bytes()  # with Python, torch and this package
    trainer = Trainer(config, folder / "run", [_Leave(before)])
    trainer.quiet = True
    trainer.fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A place for code of one's own in the trainer. Override what you need:

    class GoodEnough(fullstride.Hook):
        def on_evaluate(self, trainer, row):
            if row["accuracy"] > 0.99:
                trainer.stop("good enough")

    fullstride.Trainer(config, hooks=[GoodEnough()]).fit()
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trainer import Trainer


class Hook:
    """Called in the order in which hooks were given. What one raises ends the run, after a checkpoint."""

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step of this process: model and optimizer are prepared, a checkpoint is loaded."""

    def on_step(self, trainer: "Trainer", loss: float) -> None:
        """After every optimizer step; trainer.state.step counts it already."""

    def on_evaluate(self, trainer: "Trainer", row: dict[str, Any]) -> None:
        """After every evaluation, with what went into the metrics."""

    def on_checkpoint(self, trainer: "Trainer", folder: Path) -> None:
        """A checkpoint is being written into this folder of checkpoints."""

    def on_end(self, trainer: "Trainer") -> None:
        """After the last step, also when the run was interrupted."""

"""Rows as event files of TensorBoard."""

from pathlib import Path
from typing import Any


class Board:
    """Their writer starts with the first row, which says what of older attempts it hides."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise ValueError(
                "logging to TensorBoard needs its package: pip install 'fullstride[tensorboard]'"
            ) from None
        self._folder, self._make = folder, SummaryWriter
        self._writer: SummaryWriter | None = None

    def add(self, kind: str, row: dict[str, Any]) -> None:
        step = row["step"]
        if self._writer is None:
            self._writer = self._make(str(self._folder), purge_step=step, flush_secs=10)
        for name, value in row.items():
            pairs = value if isinstance(value, dict) else {name: value}
            group = name if isinstance(value, dict) else kind
            for label, number in pairs.items():
                if isinstance(number, int | float) and label not in ("step", "attempt"):
                    self._writer.add_scalar(f"{group}/{label}", number, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

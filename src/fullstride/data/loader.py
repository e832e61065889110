"""Micro-batches, one after the other, from this process or from workers: the same bits either way.

A micro-batch is a function of its number (order.py, dataset.py), so the number of workers can change in the middle of a
run, and nothing but the next number needs saving.
"""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from ..machine import cpu, placement, threads
from .auto_workers import AutoWorkers
from .dataset import Dataset
from .order import BatchOrder
from .sharing import ALONE, Share, SharedDataset, SharedOrder
from .workers import WorkerDied, Workers

__all__ = ["Batches", "DataEnded", "Loader", "WorkerDied", "batches"]


class DataEnded(Exception):
    """There are no more batches, and no next epoch."""


class Batches(Protocol):
    """What the trainer asks of its data."""

    @property
    def position(self) -> int:
        """The number of the next micro-batch."""
        ...

    def next(self) -> Any: ...

    def observe(self, waited: float, computed: float) -> None:
        """The seconds that next() and then the computation of the last micro-batch took."""

    def state(self) -> dict[str, Any] | None:
        """What a resumed run must know besides the position, fit for JSON."""

    @property
    def choice(self) -> str:
        """One line: how the data is loaded."""
        ...

    def close(self) -> None: ...


class Loader:
    """next() gives micro-batch number `position`, beginning with `start`; of several processes that of `share`.

    workers: processes that make micro-batches, `prefetch` ahead each; "auto" finds out how many from what observe()
    is told.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: BatchOrder,
        start: int = 0,
        workers: int | Literal["auto"] = "auto",
        prefetch: int = 2,
        share: Share = ALONE,
    ) -> None:
        if workers != "auto" and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
            raise ValueError(f"workers: expected a number from 0 on, or auto; got {workers!r}")
        if prefetch < 1:
            raise ValueError(f"prefetch: expected a number from 1 on, got {prefetch}")
        if share.world > 1:
            dataset, order = SharedDataset(dataset, share), SharedOrder(order, share)
        self.position = start
        self._dataset, self._order, self._prefetch = dataset, order, prefetch
        self._wish = workers if isinstance(workers, int) else 0
        self._auto = AutoWorkers(_most_workers(), prefetch) if workers == "auto" else None
        self._workers: Workers | None = None

    def next(self) -> tuple[Tensor, ...]:
        """What was wrong with a sample is raised as its data set raised it; the end of a worker as WorkerDied."""
        if self._workers is not None:
            try:
                batch = self._workers.next()
            except BaseException:  # an interrupt, too: asked again, it begins anew at this position
                self.close()
                raise
        else:
            batch = self._dataset.batch(*self._order.micro_batch(self.position))
            if self.num_workers:
                self._start_workers(batch)
        self.position += 1
        return batch

    def observe(self, waited: float, computed: float) -> None:
        """The seconds that next() and then the computation of the last micro-batch took."""
        if self._auto is None:
            return
        before = self._auto.num
        self._auto.observe(waited, computed)
        if self._auto.num != before:
            self.close()

    def state(self) -> None:
        """Nothing: a micro-batch is a function of its number."""

    @property
    def num_workers(self) -> int:
        return self._wish if self._auto is None else self._auto.num

    @property
    def choice(self) -> str:
        """One line: the number of workers and why."""
        return f"data workers: {self._wish or 'none'} (as asked for)" if self._auto is None else str(self._auto)

    def close(self) -> None:
        """Ends the workers. next() would start them again."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _start_workers(self, batch: tuple[Tensor, ...]) -> None:
        try:
            self._workers = Workers(
                self._dataset, self._order, self.position + 1, self.num_workers, self._prefetch, batch
            )
        except OSError as error:  # no memory, no processes
            if self._auto is None:
                raise OSError(f"{self._wish} data workers could not be started ({error}); try fewer, or 0") from error
            self._auto.give_up(f"they could not be started: {error}")


def batches(dataset: Dataset, batch: int, share: Share = ALONE) -> Iterator[tuple[Tensor, ...]]:
    """All samples once and in order, as they are in epoch 0, the last batch a short one: for evaluation.

    Several processes take whole batches in turn.
    """
    for start in range(share.rank * batch, len(dataset), share.world * batch):
        indices = np.arange(start, min(start + batch, len(dataset)), dtype=np.int64)
        yield dataset.batch(indices, np.zeros_like(indices))


def _most_workers() -> int:
    """One core is left to the training. Processes of one run share the cores, unless each is pinned to its own."""
    shares = 1 if placement.pinned() is not None else threads.local_processes()
    return max(1, cpu.describe().num_usable_cores // shares - 1)

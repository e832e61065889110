"""What a recipe brings to the trainer: the model, the data, the loss, and what to show of them."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import counting
from ..data import loader
from ..data.dataset import Dataset
from ..data.loader import Batches, Loader
from ..data.order import BatchOrder, Order
from ..data.sharing import ALONE, Share
from . import length

if TYPE_CHECKING:
    from ..distributed.peers import Peers
    from ..report.section import Section
    from .config import Config

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stock:
    """How a process without this package builds the model: models/`model_file`.py, build(**arguments) and loss()."""

    model_file: str
    arguments: dict[str, Any]


class Task:
    """Everything here must be a function of the config alone: a resumed run makes it anew."""

    unit = "samples"
    """What is counted a second ..."""
    units_per_sample = 1
    """... and how many of them a sample is: the tokens of a text, say."""
    metrics: tuple[str, ...] = ("loss",)
    """What score() sums, besides "count"."""
    higher_is_better = frozenset({"accuracy"})
    fingerprint: str | None = None
    """Of the content of the data, where it is known: a resumed run tells when it is another one."""
    micro_batch_matters: str | None = None
    """Why another micro_batch at the same micro_batch * accumulate is another training; None: it is the same one."""
    share: Share = ALONE
    """Of this process, where several train together."""
    peers: "Peers | None" = None
    """Those with the other parts of the same micro-batches, where these are cut."""
    can_cut = True
    """Whether a micro-batch can be shared by several processes."""
    uses_all_parameters = True
    """Whether each gets a gradient in every step."""
    shows_alone = True
    """Of several processes the first one calls show(); False: all do, as what it finds out is needed in all."""
    train_data: Dataset
    valid_data: Dataset

    def describe(self) -> str | None:
        """What a run says of its data when it begins: one line, if there is more to know than how much it is."""
        return None

    # ---- the data: of a data set, unless these are overridden --------------------------------------------------------

    @property
    def num_train(self) -> int | None:
        """Samples, if that is known."""
        return len(self.train_data)

    @property
    def num_valid(self) -> int | None:
        """Samples held out; 0: there is no evaluation."""
        return len(self.valid_data)

    def num_samples(self, batch: Any, config: "Config") -> int:
        """In a micro-batch, or in this process's part of it."""
        return config.micro_batch // self.share.parts

    def micro_batches_of_epoch(self, config: "Config") -> Fraction | None:
        return Fraction(len(self.train_data), config.micro_batch)

    def train_batches(self, config: "Config", position: int, saved: dict[str, Any] | None) -> Batches:
        """From micro-batch number `position` of this process on. saved: what state() said when the run was saved."""
        order = self.order(config)
        data = getattr(config, "data", None)
        workers: Any = getattr(data, "workers", "auto")
        prefetch: int = getattr(data, "prefetch", 2)
        return Loader(self.train_data, order, position, workers, prefetch, self.share)

    def order(self, config: "Config") -> BatchOrder:
        """Which samples of train_data each micro-batch has."""
        return Order(len(self.train_data), config.micro_batch, config.seed)

    def valid_batches(self, batch: int) -> Iterable[Any]:
        """Those of this process."""
        return loader.batches(self.valid_data, batch, self.share)

    def length(self, config: "Config") -> length.Length:
        """Of a run."""
        epoch = self.micro_batches_of_epoch(config)
        return length.of_run(config.steps, config.epochs, None if epoch is None else epoch / config.accumulate)

    # ---- the model ---------------------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        """With fresh weights, from torch's random numbers as they stand."""
        raise NotImplementedError

    def load_weights(self, model: nn.Module) -> None:
        """Before the first step of a new run: weights to start from, if not the fresh ones."""

    def build_optimizer(self, model: nn.Module) -> Optimizer | None:
        """One that is there already; None: that of the config."""
        return None

    def write_files(self, folder: Path) -> None:
        """Into a new run folder: what the weights cannot be used without, a tokenizer say."""

    def join(self, model: nn.Module, peers: "Peers") -> None:
        """Micro-batches are cut: from now on loss() is that of a part, such that the mean over the peers is that of the
        whole. Where it is a mean over samples that count alike, there is nothing to do."""
        self.peers = peers

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean of a micro-batch."""
        raise NotImplementedError

    def score(self, model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, float]:
        """Sums over a batch of validation data, among them "count"; the trainer divides by it."""
        raise NotImplementedError

    def flops(self, model: nn.Module) -> float | None:
        """Of one sample, forward and backward, before prepare(): see counting.py. None, and a line, if it cannot be."""
        try:
            batch, num_samples = self.example_batch()
            return counting.flops_of(model, self._training_loss, batch).total / num_samples
        except Exception as error:  # of a model and data that nobody knows: the run does not depend on it
            logger.info("no GFLOP/s and no share of the peak will be shown: %s", error)
            return None

    def _training_loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.loss(model.train(), batch)

    def example_batch(self) -> tuple[Any, int]:
        """A batch as in training, and the samples in it. Two: to a single one, norms over the batch say no."""
        indices = np.arange(2) % len(self.train_data)
        return self.train_data.batch(indices, np.zeros_like(indices)), 2

    def largest_batch(self, size: int) -> tuple[Tensor, ...]:
        """A micro-batch that takes as much memory as any; one larger than the data has samples twice."""
        indices = np.arange(size) % len(self.train_data)
        return self.train_data.batch(indices, np.zeros_like(indices))

    def watch(self, model: nn.Module) -> dict[str, float]:
        """Numbers of the model that go into every row of metrics: a temperature that it learns, say."""
        return {}

    def sample(self, model: nn.Module) -> str | None:
        """After each evaluation: text that shows what the model can do by now."""
        return None

    def show(self, model: nn.Module, folder: Path, step: int, between: Callable[[], None]) -> list[dict[str, Any]]:
        """After each evaluation: events for the report, and files of theirs in the run folder.

        What takes long calls `between` now and then: it raises if the run is told to stop.
        """
        text = self.sample(model)
        return [] if text is None else [{"event": "sample", "text": text}]

    def sections(self, model: nn.Module, run: Path) -> list["Section"]:
        """What only this task can show in the report of this run."""
        return []

    def assess(self, model: nn.Module, run: Path) -> list[dict[str, Any]] | None:
        """What takes too long for every evaluation, as the rows of a table; None: nothing that score() does not say."""
        return None

    def stock(self) -> Stock:
        raise NotImplementedError

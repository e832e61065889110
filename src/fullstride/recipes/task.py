"""What a recipe brings to the trainer: the model, the data, the loss, and what to show of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..data.dataset import Dataset

if TYPE_CHECKING:
    from ..report.section import Section


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
    train_data: Dataset
    valid_data: Dataset

    def build_model(self) -> nn.Module:
        """With fresh weights, from torch's random numbers as they stand."""
        raise NotImplementedError

    def load_weights(self, model: nn.Module) -> None:
        """Before the first step of a new run: weights to start from, if not the fresh ones."""

    def write_files(self, folder: Path) -> None:
        """Into a new run folder: what the weights cannot be used without, a tokenizer say."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean of a micro-batch."""
        raise NotImplementedError

    def score(self, model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, float]:
        """Sums over a batch of validation data, among them "count"; the trainer divides by it."""
        raise NotImplementedError

    def flops(self, model: nn.Module) -> float:
        """Of the products of one sample, forward and backward: two a weight forward, four backward."""
        return 6.0 * sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))

    def sample(self, model: nn.Module) -> str | None:
        """After each evaluation: text that shows what the model can do by now."""
        return None

    def sections(self, model: nn.Module) -> list["Section"]:
        """What only this task can show in the report."""
        return []

    def stock(self) -> Stock:
        raise NotImplementedError

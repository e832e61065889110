"""What recipe `mlp` trains: a classifier of generated points, digits or small pictures."""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import cifar, loader, mnist
from ..data.augment import DIGITS, PHOTOS, Augment
from ..data.synthetic import SyntheticDataset
from ..models import mlp
from .task import Stock, Task

if TYPE_CHECKING:
    from ..report.section import Section
    from .mlp import MlpConfig


class MlpTask(Task):
    metrics = ("loss", "accuracy")

    def __init__(self, config: "MlpConfig") -> None:
        self.config = config
        data, seed = config.data, config.seed
        folder = None if data.path is None else Path(data.path).expanduser()
        if data.name == "synthetic":
            sizes = (data.num_features, data.num_classes)
            self.train_data = SyntheticDataset(data.num_samples, *sizes, seed=seed)
            self.valid_data = SyntheticDataset(data.num_valid, *sizes, seed=seed, first=data.num_samples)
            self.num_classes = data.num_classes
        elif data.name == "mnist":
            self.train_data = digits = mnist.load(folder, "train", self._augment(DIGITS), flat=False)
            self.valid_data = mnist.load(folder, "valid", flat=False)
            self.num_classes = len(digits.class_names)
        else:
            self.train_data = cifar.load(folder, data.name, "train", self._augment(PHOTOS))
            self.valid_data = cifar.load(folder, data.name, "valid")
            self.num_classes = 10 if data.name == "cifar10" else 100
        self.num_inputs = prod(next(loader.batches(self.valid_data, 1))[0].shape[1:])

    def _augment(self, kind: Augment) -> Augment | None:
        return replace(kind, seed=self.config.seed) if self.config.data.augment else None

    def build_model(self) -> nn.Module:
        return mlp.build(**self.stock().arguments)

    def stock(self) -> Stock:
        widths = [self.num_inputs, *self.config.model.hidden, self.num_classes]
        return Stock("mlp", {"widths": widths, "dropout": self.config.model.dropout})

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return mlp.loss(model, batch)

    def score(self, model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, float]:
        inputs, labels = batch
        scores = model(inputs).float()
        return {
            "loss": F.cross_entropy(scores, labels, reduction="sum").item(),
            "accuracy": (scores.argmax(1) == labels).sum().item(),
            "count": len(labels),
        }

    def sections(self, model: nn.Module, run: Path) -> list["Section"]:
        from ..report import classification

        scores, labels, images = [], [], []
        with torch.no_grad():
            for inputs, truth in loader.batches(self.valid_data, self.config.evaluation.batch):
                scores.append(model(inputs).float().softmax(1))
                labels.append(truth)
                images.append(inputs)
        probabilities, truths = torch.cat(scores), torch.cat(labels).numpy()
        confidences, predictions = (values.numpy() for values in probabilities.max(1))
        names = getattr(self.valid_data, "class_names", None)
        sections = [classification.confusion(truths, predictions, names)]
        if names is not None:
            pictures = torch.cat(images).numpy()
            sections.append(classification.mistakes(pictures, truths, predictions, confidences, names))
        return sections

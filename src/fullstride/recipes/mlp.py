"""Recipe `mlp`: a classifier of images or feature vectors, about 52M parameters at full size."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .config import Checkpoints, Config, Evaluation, Freeze, Logging, Optimizer, Schedule, expect

if TYPE_CHECKING:
    from .mlp_task import MlpTask


@dataclass(frozen=True)
class Model:
    hidden: tuple[int, ...] = (4096, 4096, 4096, 3072)
    """Widths of the hidden layers, each with a ReLU. Inputs and classes are the data's."""
    dropout: float = 0.0
    """After every hidden layer."""

    def __post_init__(self) -> None:
        for i, width in enumerate(self.hidden):
            expect(width >= 1, f"model.hidden[{i}]", "1 or more", width)
        expect(0 <= self.dropout < 1, "model.dropout", "from 0 to below 1", self.dropout)


@dataclass(frozen=True)
class Data:
    name: Literal["synthetic", "mnist", "cifar10", "cifar100"] = "synthetic"
    path: str | None = None
    """The folder of the files; None: where `fullstride data NAME` puts them."""
    num_samples: int = 50_000
    """Of synthetic: training samples, generated on demand."""
    num_features: int = 784
    """Of synthetic."""
    num_classes: int = 1000
    """Of synthetic."""
    num_valid: int = 1000
    """Of synthetic: samples held out."""
    augment: bool = False
    """Shift, turn and scale training images (mnist); shift and mirror them (cifar)."""
    workers: int | Literal["auto"] = "auto"
    """Processes that make batches; auto: chosen by measurement, starting from none."""
    prefetch: int = 2
    """Batches that each worker makes ahead."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_features", "num_classes", "num_valid", "prefetch"):
            expect(getattr(self, name) >= 1, f"data.{name}", "1 or more", getattr(self, name))
        expect(self.workers == "auto" or self.workers >= 0, "data.workers", "0 or more, or auto", self.workers)


@dataclass(frozen=True, kw_only=True)
class MlpConfig(Config):
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)

    def task(self) -> "MlpTask":
        from .mlp_task import MlpTask

        return MlpTask(self)

    def located(self) -> "MlpConfig":
        path = self.data.path
        return self if path is None else self.replace(data={"path": str(Path(path).expanduser().absolute())})


def mlp() -> MlpConfig:
    """52M parameters on generated data: 784 features, 1000 classes, batches of 8 x 128."""
    return MlpConfig(
        recipe="mlp", steps=1000, micro_batch=128, accumulate=8,
        optimizer=Optimizer(lr=3e-4), schedule=Schedule(warmup=0.05),
        evaluation=Evaluation(every=100, metric="accuracy"), checkpoints=Checkpoints(every=100),
    )  # fmt: skip


def mlp_mnist() -> MlpConfig:
    """The same network reads 4,000 real handwritten digits; `fullstride data mnist` fetches them."""
    return MlpConfig(
        recipe="mlp-mnist", steps=260, micro_batch=128,
        data=Data(name="mnist", augment=True),
        optimizer=Optimizer(lr=1e-3), schedule=Schedule(warmup=0.08),
        evaluation=Evaluation(every=52, metric="accuracy"), checkpoints=Checkpoints(every=130),
        logging=Logging(every=5),
    )  # fmt: skip


def mlp_seven() -> MlpConfig:
    """All seven at once: fused layers, bf16, LAMB with bf16 states, Lookahead, freezing, 8 x 128, generated data."""
    return MlpConfig(
        recipe="mlp-seven", epochs=10, micro_batch=128, accumulate=8,
        optimizer=Optimizer(name="lamb", state_precision="bf16", lookahead=True), schedule=Schedule(warmup=0.05),
        freeze=Freeze(enabled=True), evaluation=Evaluation(every="1 epoch", metric="accuracy"),
        checkpoints=Checkpoints(every="5 epochs"),
    )  # fmt: skip

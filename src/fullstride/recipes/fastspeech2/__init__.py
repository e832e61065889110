"""Recipe `fastspeech2`: text to speech, about 10 million parameters."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..config import Checkpoints, Config, Evaluation, Logging, Optimizer, Schedule, expect

if TYPE_CHECKING:
    from torch import Tensor

    from .task import FastSpeech2Task


@dataclass(frozen=True)
class Model:
    """Phonemes and speakers are the corpus's."""

    width: int = 256
    encoder_layers: int = 4
    decoder_layers: int = 4
    heads: int = 2
    hidden: int = 768
    """Channels between the convolution and the linear layer of each block."""
    kernel: int = 3
    """Of the convolution in each block, an odd number."""
    predictor_kernel: int = 3
    """Of the convolutions that predict durations, pitch and energy."""
    variance_bins: int = 256
    """Into which pitch and energy are cut."""
    dropout: float = 0.1
    predictor_dropout: float = 0.3
    postnet: bool = False
    """Five convolutions more behind the mel frames."""

    def __post_init__(self) -> None:
        for name in ("width", "encoder_layers", "decoder_layers", "heads", "hidden"):
            expect(getattr(self, name) >= 1, f"model.{name}", "1 or more", getattr(self, name))
        expect(self.variance_bins >= 2, "model.variance_bins", "2 or more", self.variance_bins)
        for name in ("kernel", "predictor_kernel"):
            size = getattr(self, name)
            expect(size >= 1 and size % 2 == 1, f"model.{name}", "an odd number from 1 on", size)
        for name in ("dropout", "predictor_dropout"):
            expect(0 <= getattr(self, name) < 1, f"model.{name}", "from 0 to below 1", getattr(self, name))
        fits = self.width % (2 * self.heads) == 0
        expect(fits, "model.width", f"a multiple of 2 x heads ({2 * self.heads})", self.width)

    def shape(self) -> dict[str, Any]:
        """Arguments of models.fastspeech2.build, without phonemes and speakers."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Data:
    path: str | None = None
    """The folder of a prepared corpus; None: where `fullstride data speech` puts it."""
    workers: int | Literal["auto"] = "auto"
    """Processes that make batches; auto: chosen by measurement, starting from none."""
    prefetch: int = 2
    """Batches that each worker makes ahead."""

    def __post_init__(self) -> None:
        expect(self.prefetch >= 1, "data.prefetch", "1 or more", self.prefetch)
        expect(self.workers == "auto" or self.workers >= 0, "data.workers", "0 or more, or auto", self.workers)


@dataclass(frozen=True)
class Listening:
    """After each evaluation the model says held-out sentences, and a recogniser writes down what it hears."""

    sentences: int = 50
    """How many for the recogniser (pocketsphinx, of the extra tts); 0: none."""
    sample: int = 0
    """Which held-out sentence becomes a WAV file, for the report."""
    iterations: int = 32
    """Of Griffin-Lim."""

    def __post_init__(self) -> None:
        expect(self.sentences >= 0, "listening.sentences", "0 or more", self.sentences)
        expect(self.sample >= 0, "listening.sample", "0 or more", self.sample)
        expect(self.iterations >= 1, "listening.iterations", "1 or more", self.iterations)


@dataclass(frozen=True, kw_only=True)
class FastSpeech2Config(Config):
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    listening: Listening = field(default_factory=Listening)

    def task(self) -> "FastSpeech2Task":
        from .task import FastSpeech2Task

        return FastSpeech2Task(self)

    def located(self) -> "FastSpeech2Config":
        path = self.data.path
        return self if path is None else self.replace(data={"path": str(Path(path).expanduser().absolute())})

    def next_commands(self, run: Path) -> list[str]:
        return [f'fullstride speak {run} "Hello there." --out hello.wav', f"fullstride export {run} --to voice"]

    def write_model(self, tensors: "dict[str, Tensor]", run: Path, target: Path, replace: bool) -> list[Path]:
        from . import files, onnx

        arguments = files.sizes(tensors) | self.model.shape()
        if target.suffix == ".onnx":
            return onnx.write(tensors, arguments, run, target, replace)
        if target.suffix:
            raise ValueError(f"--to: expected a name that ends with .safetensors or .onnx, or a folder's, got {target}")
        return files.write_folder(tensors, arguments, run, target, replace)


def fastspeech2() -> FastSpeech2Config:
    """Text to speech, 10M parameters, 200 epochs of 16 x 2 sentences; `fullstride data speech` makes the corpus."""
    return FastSpeech2Config(
        recipe="fastspeech2", epochs=200, micro_batch=16, accumulate=2,
        optimizer=Optimizer(name="adam", lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
        schedule=Schedule(name="step", warmup=4000, every=50_000, factor=0.5),
        evaluation=Evaluation(every=1000, batch=16, patience=20), checkpoints=Checkpoints(every=1000),
        logging=Logging(every=20),
    )  # fmt: skip


def fastspeech2_quick() -> FastSpeech2Config:
    """The quick start: the same model learns a voice that can be understood; 14 minutes on 2 cores with bf16."""
    return FastSpeech2Config(
        recipe="fastspeech2-quick", steps=3000, micro_batch=16,
        model=Model(predictor_dropout=0.1),
        optimizer=Optimizer(name="adam", lr=1e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0),
        schedule=Schedule(name="cosine", warmup=0.05, floor=1e-5),
        evaluation=Evaluation(every=600, batch=16), checkpoints=Checkpoints(every=600),
        logging=Logging(every=20),
    )  # fmt: skip

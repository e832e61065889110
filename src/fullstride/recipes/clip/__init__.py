"""Recipe `clip`: pictures and captions in one space, about 75 million parameters."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..config import Checkpoints, Config, Evaluation, Logging, Optimizer, Schedule, expect

if TYPE_CHECKING:
    from torch import Tensor

    from ...data.pictures.pairs import Scaling
    from .task import ClipTask

MADE_OF_TEXT = ("characters", "bpe")  # tokenizers; others are folders
_FIELDS = (
    "image", "patch", "vision_width", "vision_layers", "vision_heads",
    "context", "text_width", "text_layers", "text_heads", "space",
)  # fmt: skip
SIZES: dict[str, tuple[int, ...]] = {
    "base": (224, 16, 640, 12, 10, 77, 448, 6, 7, 512),
    "small": (64, 8, 192, 6, 3, 64, 192, 4, 3, 192),
}


@dataclass(frozen=True)
class Model:
    size: Literal["base", "small"] = "base"
    """Gives what is None below. The number of tokens is the tokenizer's."""
    image: int | None = None
    """Pixels a side of a picture."""
    patch: int | None = None
    """Pixels a side of the squares that it is cut into, a divisor of image."""
    vision_width: int | None = None
    vision_layers: int | None = None
    vision_heads: int | None = None
    context: int | None = None
    """The most tokens of a caption, its start and end among them; longer ones are cut."""
    text_width: int | None = None
    text_layers: int | None = None
    text_heads: int | None = None
    space: int | None = None
    """Width of the space that pictures and captions share."""
    activation: Literal["gelu", "quick_gelu"] = "gelu"
    """quick_gelu: that of OpenAI's weights."""
    dropout: float = 0.0
    chunk: int | None = None
    """Pictures and captions that the encoders take at once; the loss is over all of micro_batch, computed anew chunk by
    chunk in backward: activations of a chunk alone, a third more work. None: all at once."""

    def __post_init__(self) -> None:
        for name in (*_FIELDS, "chunk"):
            value = getattr(self, name)
            expect(value is None or value >= 1, f"model.{name}", "1 or more", value)
        expect(0 <= self.dropout < 1, "model.dropout", "from 0 to below 1", self.dropout)
        shape = self.shape()
        image, patch = shape["image"], shape["patch"]
        expect(image % patch == 0, "model.image", f"a multiple of patch ({patch})", image)
        expect(shape["context"] >= 3, "model.context", "3 or more tokens", shape["context"])
        for part in ("vision", "text"):
            width, heads = shape[f"{part}_width"], shape[f"{part}_heads"]
            expect(width % heads == 0, f"model.{part}_width", f"a multiple of {part}_heads ({heads})", width)

    def shape(self) -> dict[str, Any]:
        """Arguments of models.clip.build, without the vocabulary."""
        shape: dict[str, Any] = dict(zip(_FIELDS, SIZES[self.size], strict=True))
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        return shape | given | {name: getattr(self, name) for name in ("activation", "dropout", "chunk")}


@dataclass(frozen=True)
class Data:
    name: Literal["scenes", "emoji", "pairs"] = "scenes"
    """scenes: drawn here; emoji: of `fullstride data emoji`; pairs: your own, see path."""
    path: str | None = None
    """Of pairs: a folder of pictures and captions (.csv, .tsv, .jsonl, .txt beside them), such a file, or .tar files of
    webdataset. Of emoji: None, where `fullstride data emoji` puts them."""
    num_train: int = 10_000
    """Of scenes."""
    num_valid: int = 500
    """Of scenes and emoji: held out."""
    valid_share: float = 0.1
    """Of pairs that come without a split: held out."""
    held_out: str = "twitter"
    """Of emoji: the vendor whose drawings are not trained on."""
    tokenizer: str = "bpe"
    """characters, bpe (trained on the captions), or a folder with a tokenizer: of a run, or of Hugging Face."""
    vocabulary: int = 2048
    """Of bpe: its pieces at most."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Of red, green and blue from 0 to 1, taken away before the model sees them; with init those of its folder."""
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """By which they are divided then."""
    augment: bool = True
    """Pictures shifted and lit otherwise, and captions phrased otherwise, in each epoch."""
    workers: int | Literal["auto"] = "auto"
    """Processes that make batches; auto: chosen by measurement, starting from none."""
    prefetch: int = 2
    """Batches that each worker makes ahead."""

    def __post_init__(self) -> None:
        for name in ("num_train", "num_valid", "prefetch"):
            expect(getattr(self, name) >= 1, f"data.{name}", "1 or more", getattr(self, name))
        expect(0 < self.valid_share < 1, "data.valid_share", "above 0, below 1", self.valid_share)
        expect(1 <= self.vocabulary <= 65535, "data.vocabulary", "1 to 65535", self.vocabulary)
        expect(self.workers == "auto" or self.workers >= 0, "data.workers", "0 or more, or auto", self.workers)
        for i, value in enumerate(self.std):
            expect(value > 0, f"data.std[{i}]", "above 0", value)
        if self.name == "pairs":
            expect(self.path is not None, "data.path", "a folder of pictures and captions", "none")
        if self.name == "scenes":
            expect(self.path is None, "data.path", "none, as scenes are drawn (--data.name pairs reads it)", self.path)

    def scaling(self) -> "Scaling":
        from ...data.pictures.pairs import Scaling

        return Scaling(self.mean, self.std)


@dataclass(frozen=True)
class Negatives:
    """Wrong captions besides those of the other pictures in the batch, which are the easy ones."""

    medium: float = 0.0
    """Share of the pictures that bring a caption with one thing in common: an attribute of a scene, a word."""
    hard: float = 0.0
    """Share that bring one of the same objects in another relation, or the one with the most words in common."""
    mined: float = 0.0
    """Share that bring the caption that the model itself took for theirs, of those it was wrong about."""
    pool: int = 1000
    """Of mined: training pairs that are looked through after each evaluation."""
    start: float = 0.0
    """Epochs before the first."""
    full: float = 0.0
    """Epochs after which the shares are whole; they rise from start to here, or are whole at once if it is earlier."""

    def __post_init__(self) -> None:
        for name in ("medium", "hard", "mined"):
            expect(0 <= getattr(self, name) <= 1, f"negatives.{name}", "a share from 0 to 1", getattr(self, name))
        for name in ("start", "full"):
            expect(0 <= getattr(self, name) < 1e9, f"negatives.{name}", "0 or more epochs", getattr(self, name))
        expect(self.pool >= 2, "negatives.pool", "2 or more pairs", self.pool)


@dataclass(frozen=True, kw_only=True)
class ClipConfig(Config):
    init: str | None = None
    """Fine-tune: the folder of a CLIP of Hugging Face; it gives the model and the tokenizer."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    negatives: Negatives = field(default_factory=Negatives)

    def task(self) -> "ClipTask":
        from .task import ClipTask

        return ClipTask(self.located())

    def located(self) -> "ClipConfig":
        """With the model of the folder to start from, too: a run goes on after that is gone."""
        config = self
        if self.data.path is not None:
            config = config.replace(data={"path": _absolute(self.data.path)})
        if self.data.tokenizer not in MADE_OF_TEXT:
            config = config.replace(data={"tokenizer": _absolute(self.data.tokenizer)})
        if self.init is not None:
            config = config.replace(init=_absolute(self.init))
            if any(getattr(self.model, name) is None for name in _FIELDS) or self.data.tokenizer in MADE_OF_TEXT:
                config = config._as_in_folder()
        return config

    def of_run(self, run: Path) -> "ClipConfig":
        """Its tokenizer is kept in its folder."""
        return self.replace(data={"tokenizer": _absolute(str(run))})

    def kept_files(self, run: Path) -> list[Path]:
        from ...tokens import captions

        return [run / name for name in captions.FILES if (run / name).is_file()]

    def next_commands(self, run: Path) -> list[str]:
        search = f'fullstride search {run} "a red circle left of a blue square" --folder PICTURES'
        return [search, f"fullstride evaluate {run} --full", f"fullstride export {run} --to clip"]

    def write_model(self, tensors: "dict[str, Tensor]", run: Path, target: Path, replace: bool) -> list[Path]:
        from . import files

        if target.suffix:
            raise ValueError(f"--to: expected a name that ends with .safetensors, or a folder's, got {target}")
        return files.write_folder(self, tensors, run, target, replace)

    def _as_in_folder(self) -> "ClipConfig":
        from ...exchange import huggingface_clip

        assert self.init is not None
        shape = huggingface_clip.shape_of(Path(self.init))
        for name in _FIELDS:
            wish = getattr(self.model, name)
            expect(wish in (None, shape[name]), f"model.{name}", f"{shape[name]}, as in {self.init}", wish)
        own, there = self.model.activation, shape["activation"]
        expect(own in (Model.activation, there), "model.activation", f"{there}, as in {self.init}", own)
        given = {name: shape[name] for name in (*_FIELDS, "activation")}
        return self.replace(model=given, data=self._data_as_in_folder(Path(self.init)))

    def _data_as_in_folder(self, folder: Path) -> dict[str, Any]:
        """Its tokenizer, unless another was named, and how its pictures are made."""
        from ...exchange import huggingface_clip

        wish = self.data.tokenizer
        expect(wish != "characters", "data.tokenizer", f"that of {folder}, or a folder with another", wish)
        found: dict[str, Any] = {} if wish not in MADE_OF_TEXT else {"tokenizer": str(folder)}
        scaling = huggingface_clip.normalisation_of(folder)
        for name, values in zip(("mean", "std"), scaling or (), strict=False):
            own = getattr(self.data, name)
            expect(own in (getattr(Data, name), values), f"data.{name}", f"{list(values)}, as in {folder}", list(own))
            found[name] = list(values)
        return found


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def clip() -> ClipConfig:
    """Pictures and captions in one space, 75M parameters, 15 epochs of batches of 12 over 10,000 drawn scenes."""
    return ClipConfig(
        recipe="clip", epochs=15, micro_batch=12,
        negatives=Negatives(hard=0.5, start=5, full=8),
        optimizer=Optimizer(lr=2e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1),
        schedule=Schedule(warmup=0.05, floor=1e-6),
        evaluation=Evaluation(every="1 epoch", batch=100, metric="recall_1"), checkpoints=Checkpoints(every="5 epochs"),
    )  # fmt: skip


def clip_small() -> ClipConfig:
    """The quick start: a small CLIP learns to tell drawn scenes apart."""
    return ClipConfig(
        recipe="clip-small", epochs=30, micro_batch=128,
        model=Model(size="small"),
        negatives=Negatives(hard=0.5, start=10, full=15),
        optimizer=Optimizer(lr=7e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1),
        schedule=Schedule(warmup=0.05, floor=1e-6),
        evaluation=Evaluation(every="2 epochs", batch=100, metric="recall_1"),
        checkpoints=Checkpoints(every="5 epochs"),
        logging=Logging(every=20),
    )  # fmt: skip

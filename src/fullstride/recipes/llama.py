"""Recipe `llama`: a language model of the Llama kind, from 260 thousand to 110 million parameters."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .config import Checkpoints, Config, Evaluation, Logging, Optimizer, Schedule, expect

if TYPE_CHECKING:
    from torch import Tensor

    from .llama_task import LlamaTask

_MADE_OF_TEXT = ("characters", "bpe")  # tokenizers; others are files
_FIELDS = ("width", "layers", "heads", "kv_heads", "hidden", "context")
SIZES: dict[str, tuple[int, ...]] = {
    "characters": (128, 4, 4, 4, 352, 256),
    "stories260K": (64, 5, 8, 4, 172, 512),
    "stories15M": (288, 6, 6, 6, 768, 256),
    "stories42M": (512, 8, 8, 8, 1376, 1024),
    "stories110M": (768, 12, 12, 12, 2048, 1024),
}
"""The stories sizes are llama2.c's, whose names count 32000 tokens (260K: 512)."""


@dataclass(frozen=True)
class Model:
    size: Literal["characters", "stories260K", "stories15M", "stories42M", "stories110M"] = "stories15M"
    """Gives what is None below. The number of tokens is the tokenizer's."""
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    """Heads of keys and values; fewer than heads: grouped-query attention."""
    hidden: int | None = None
    """Of the MLP in each layer."""
    context: int | None = None
    """Tokens in a sample, and the most that the model can look back on."""
    tied: bool = True
    """The head is the embedding."""
    rope_base: float = 10000.0
    """Of the rotary positions."""
    eps: float = 1e-5
    """Of RMSNorm."""
    recompute: bool = False
    """Activation checkpointing: each layer is computed again in backward, which saves memory and costs time."""

    def __post_init__(self) -> None:
        for name in _FIELDS:
            value = getattr(self, name)
            expect(value is None or value >= 1, f"model.{name}", "1 or more", value)
        expect(self.rope_base > 0, "model.rope_base", "above 0", self.rope_base)
        expect(self.eps > 0, "model.eps", "above 0", self.eps)
        shape = self.shape()
        width, heads, kv_heads = shape["width"], shape["heads"], shape["kv_heads"]
        expect(width % (2 * heads) == 0, "model.width", f"a multiple of 2 x heads ({2 * heads})", width)
        expect(heads % kv_heads == 0, "model.kv_heads", f"a divisor of heads ({heads})", kv_heads)

    def shape(self) -> dict[str, Any]:
        """Arguments of models.llama.build, without the vocabulary."""
        shape: dict[str, Any] = dict(zip(_FIELDS, SIZES[self.size], strict=True))
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        if "heads" in given and "kv_heads" not in given:
            shape["kv_heads"] = given["heads"]
        return shape | given | {name: getattr(self, name) for name in ("tied", "rope_base", "eps", "recompute")}


@dataclass(frozen=True)
class Data:
    path: str | None = None
    """A folder of .txt files, one such file, or a folder of .bin tokens; None: Shakespeare."""
    tokenizer: str = "bpe"
    """characters, bpe (trained on the text), or a file: tokenizer.model, tokenizer.bin, characters.json."""
    vocabulary: int = 4096
    """Of bpe: its pieces, 512 to 32000. Of .bin tokens without a tokenizer: how many different tokens there are."""
    valid_share: float = 0.1
    """Of each text, held out at its end."""
    workers: int | Literal["auto"] = "auto"
    """Processes that make batches; auto: chosen by measurement, starting from none."""
    prefetch: int = 2
    """Batches that each worker makes ahead."""

    def __post_init__(self) -> None:
        expect(1 <= self.vocabulary <= 65536, "data.vocabulary", "1 to 65536, which 16 bits hold", self.vocabulary)
        expect(0 < self.valid_share < 1, "data.valid_share", "above 0, below 1", self.valid_share)
        expect(self.prefetch >= 1, "data.prefetch", "1 or more", self.prefetch)
        expect(self.workers == "auto" or self.workers >= 0, "data.workers", "0 or more, or auto", self.workers)


@dataclass(frozen=True)
class Samples:
    """Text written after each evaluation, for the report."""

    tokens: int = 200
    """How long; 0: none."""
    prompt: str = ""
    """What it begins with."""
    temperature: float = 0.8
    top_p: float = 0.95

    def __post_init__(self) -> None:
        expect(self.tokens >= 0, "samples.tokens", "0 or more", self.tokens)
        expect(self.temperature >= 0, "samples.temperature", "0 or more", self.temperature)
        expect(0 < self.top_p <= 1, "samples.top_p", "above 0, at most 1", self.top_p)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(Config):
    init: str | None = None
    """Fine-tune: a llama2.c .bin, a Hugging Face folder, a .gguf or an exported .safetensors; it gives the model."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    samples: Samples = field(default_factory=Samples)

    def task(self) -> "LlamaTask":
        from .llama_task import LlamaTask

        return LlamaTask(self.located())

    def located(self) -> "LlamaConfig":
        """With the model of the file to start from, too: a run goes on after that file is gone."""
        config = self
        if self.data.path is not None:
            config = config.replace(data={"path": _absolute(self.data.path)})
        if self.data.tokenizer not in _MADE_OF_TEXT:
            config = config.replace(data={"tokenizer": _absolute(self.data.tokenizer)})
        if self.init is not None:
            config = config.replace(init=_absolute(self.init))
            is_open = self.data.tokenizer in _MADE_OF_TEXT  # as it never is in the config of a run
            if is_open or any(getattr(self.model, name) is None for name in _FIELDS):
                config = config._as_in_file()
        return config

    def of_run(self, run: Path) -> "LlamaConfig":
        """Its tokenizer, if that was a file or came with one."""
        from .. import tokens

        kept = tokens.find(run)
        if kept is None or self.data.tokenizer in _MADE_OF_TEXT:
            return self
        return self.replace(data={"tokenizer": _absolute(str(kept))})

    def kept_files(self, run: Path) -> list[Path]:
        from .. import tokens

        kept = tokens.find(run)
        return [] if kept is None else [kept]

    def next_commands(self, run: Path) -> list[str]:
        return [f'fullstride generate {run} --prompt "..."', f"fullstride export {run} --to model.gguf"]

    def write_model(self, tensors: "dict[str, Tensor]", run: Path, target: Path, replace: bool) -> list[Path]:
        from .. import exchange, tokens

        shape = self.model.shape() | {"vocabulary": len(tensors["embedding.weight"])}
        tokenizer = tokens.load(run) if tokens.find(run) else None
        return exchange.write(target, exchange.SavedModel(shape, tensors, tokenizer), replace)

    def _as_in_file(self) -> "LlamaConfig":
        from . import llama_files

        assert self.init is not None
        shape = llama_files.shape_of(Path(self.init))
        vocabulary = shape.pop("vocabulary")
        for name in _FIELDS:
            wish = getattr(self.model, name)
            fits = wish in (None, shape[name]) or (name == "context" and wish < shape[name])
            expect(fits, f"model.{name}", f"{shape[name]}, as in {self.init}", wish)
        for name in ("tied", "rope_base", "eps"):
            wish = getattr(self.model, name)
            fits = wish == getattr(Model, name) or math.isclose(wish, shape[name], rel_tol=1e-6)  # GGUF has fp32
            expect(fits, f"model.{name}", f"{shape[name]}, as in {self.init}", wish)
        shape["context"] = self.model.context or shape["context"]
        data: dict[str, Any] = {"vocabulary": vocabulary}
        if self.data.tokenizer in _MADE_OF_TEXT:
            data["tokenizer"] = self.init  # its own
        return self.replace(model=shape, data=data)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def llama() -> LlamaConfig:
    """stories15M on Shakespeare's words, 4096 BPE pieces; `fullstride data shakespeare` fetches them."""
    return LlamaConfig(
        recipe="llama", steps=2000, micro_batch=8,
        optimizer=Optimizer(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1), schedule=Schedule(warmup=0.05, floor=1e-5),
        evaluation=Evaluation(every=200, batch=8), checkpoints=Checkpoints(every=200),
    )  # fmt: skip


def llama_char() -> LlamaConfig:
    """The quick start: a small Llama learns to write Shakespeare, character by character; 12 minutes on 2 cores."""
    return LlamaConfig(
        recipe="llama-char", steps=8000, micro_batch=4,
        model=Model(size="characters"), data=Data(tokenizer="characters"),
        optimizer=Optimizer(lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1), schedule=Schedule(warmup=0.03, floor=0.0),
        evaluation=Evaluation(every=1000, batch=16), checkpoints=Checkpoints(every=1000),
        logging=Logging(every=50),
    )  # fmt: skip

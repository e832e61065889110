"""The models of `fullstride bench step`, as an ordinary user writes them in plain PyTorch, and their data.

The process that measures stock PyTorch loads this file by its path: it must not import anything of Fullstride. Llama,
FastSpeech 2 and CLIP are those of the recipes, whose files are plain PyTorch as well and are loaded in the same way.

The places where losses are computed differ on purpose, as they do among users: the MLP's by nn.CrossEntropyLoss in the
loop, Llama's inside its forward, BERT's by F.cross_entropy on the logits that its forward returned.

Data is made from a seed and the number of the step, the same for every side. It can be learnt, so that losses say
something: classes have centres, tokens come with frequencies like those of words, and each phoneme has its sound.
"""

import importlib.util
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SEED = 0
IGNORED = -100  # the label of positions that F.cross_entropy leaves out


@dataclass(frozen=True)
class Workload:
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, ...]]  # inputs and targets of one micro-batch
    loss: Callable[..., Tensor]  # of the model and the batch
    lr: float
    unit: str  # what is counted a second
    num_units: int  # in a micro-batch
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW


def build_mlp(widths: tuple[int, ...] = (784, 4096, 4096, 4096, 2560, 1000)) -> nn.Module:
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(widths):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def classes(batch: int, num_classes: int, width: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Points around one centre a class."""
    centres = torch.randn(num_classes, width, generator=torch.Generator().manual_seed(0))

    def make(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(num_classes, (batch,), generator=generator)
        return centres[labels] + torch.randn(batch, width, generator=generator), labels

    return make


def classification_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.CrossEntropyLoss()(model(inputs), labels)


@cache
def model_file(name: str) -> ModuleType:
    """models/NAME.py, without the package around it."""
    path = Path(__file__).resolve().parents[2] / "models" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where torch.compile looks for it
    spec.loader.exec_module(module)
    return module


def loss_of(name: str) -> Callable[..., Tensor]:
    """The loss in models/NAME.py."""

    def loss(model: nn.Module, *batch: Tensor) -> Tensor:
        found: Tensor = model_file(name).loss(model, batch)
        return found

    return loss


class BertAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.key(x).view(batch, length, self.heads, -1).transpose(1, 2)
        v = self.value(x).view(batch, length, self.heads, -1).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.output(x.transpose(1, 2).reshape(batch, length, width))


class BertBlock(nn.Module):
    """Of own modules and not nn.TransformerEncoderLayer, which drops out once more than BERT does."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = BertAttention(width, heads, dropout)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.mlp_norm(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """An encoder with the head that predicts masked words."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, hidden: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(BertBlock(width, heads, hidden, dropout=0.1) for _ in range(layers))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12))
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.words.weight
        self.apply(initialise)

    def forward(self, words: Tensor) -> Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.words(words) + self.positions(positions) + self.segments(torch.zeros_like(words))
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.transform(x))


def masked_loss(model: nn.Module, words: Tensor, labels: Tensor) -> Tensor:
    logits = model(words)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), ignore_index=IGNORED)


def build_gpt2() -> nn.Module:
    """Of Hugging Face: an architecture that nobody adapted, with an activation spelt out in Python."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: nn.Module = GPT2LMHeadModel(GPT2Config(n_positions=256, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return model


def gpt2_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())


def initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def text(batch: int, length: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Tokens whose frequency falls with one over their number."""
    return (vocabulary ** torch.rand(batch, length, generator=generator)).long().sub_(1).clamp_(0, vocabulary - 1)


def next_words(batch: int, length: int, vocabulary: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    def make(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = text(batch, length + 1, vocabulary, generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return make


def masked_words(batch: int, length: int, vocabulary: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """15 % of the words are to be predicted: of these 80 % are masked, 10 % another word, 10 % as they are."""
    mask = vocabulary - 1

    def make(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        words, others = text(batch, length, vocabulary, generator), text(batch, length, vocabulary, generator)
        chosen = torch.rand(batch, length, generator=generator) < 0.15
        chosen[0, 0] = True  # however small the batch, there is something to predict
        kind = torch.rand(batch, length, generator=generator)
        labels = words.masked_fill(~chosen, IGNORED)
        inputs = words.masked_fill(chosen & (kind < 0.8), mask)
        return torch.where(chosen & (kind >= 0.9), others, inputs), labels

    return make


STORIES110M = {"vocabulary": 32000, "width": 768, "layers": 12, "heads": 12, "kv_heads": 12, "hidden": 2048}
TINY_LLAMA = {"vocabulary": 64, "width": 16, "layers": 2, "heads": 2, "kv_heads": 1, "hidden": 32}


def language(batch: int, length: int, shape: dict[str, int]) -> Workload:
    return Workload(
        lambda: model_file("llama").build(**shape, context=length),
        next_words(batch, length, shape["vocabulary"]), loss_of("llama"), lr=3e-4, unit="tokens",
        num_units=batch * length,
    )  # fmt: skip


def spoken(
    batch: int, num_phonemes: int, num_frames: int, kinds: int, bins: int
) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    """Sentences of a bucket, padded to one shape: the shortest is nine tenths of the longest.

    Each phoneme has its own usual length, pitch, energy and mel frame.
    """
    fixed = torch.Generator().manual_seed(0)
    centres = torch.randn(kinds, bins, generator=fixed)
    usual = torch.rand(kinds, 3, generator=fixed) + 0.5  # length, pitch, energy

    def make(generator: torch.Generator) -> tuple[Tensor, ...]:
        order = torch.randperm(batch, generator=generator)
        num_real = torch.linspace(0.9 * num_phonemes, num_phonemes, batch).round().long()[order, None]
        totals = frames_of_bucket(batch, num_frames)[order, None]
        is_real = torch.arange(num_phonemes) < num_real
        phonemes = torch.randint(1, kinds, (batch, num_phonemes), generator=generator) * is_real
        lengths = (usual[phonemes, 0] + 0.3 * torch.rand(batch, num_phonemes, generator=generator)) * is_real
        ends = (totals * lengths.cumsum(1) / lengths.sum(1, keepdim=True)).round().long()
        durations = torch.diff(ends, dim=1, prepend=torch.zeros(batch, 1, dtype=torch.long))
        noise = 0.3 * torch.randn(2, batch, num_phonemes, generator=generator)
        pitch, energy = ((2 * usual[phonemes, i + 1] - 2 + noise[i]) * is_real for i in range(2))
        frames = torch.arange(num_frames).expand(batch, -1).contiguous()
        of_frame = phonemes.gather(1, torch.searchsorted(ends, frames, right=True).clamp(max=num_phonemes - 1))
        mel = 2 * centres[of_frame] - 5 + 0.3 * torch.randn(batch, num_frames, bins, generator=generator)
        return phonemes, torch.zeros(batch, dtype=torch.long), durations, pitch, energy, mel

    return make


def frames_of_bucket(batch: int, num_frames: int) -> Tensor:
    """Of each sentence, without padding: (batch,)."""
    return torch.linspace(0.91 * num_frames, num_frames, batch).round().long()


# The recipe's defaults; 50 symbols are those of flite's voices.
FASTSPEECH2 = {"phonemes": 50, "width": 256, "encoder_layers": 4, "decoder_layers": 4, "heads": 2, "hidden": 768}
TINY_SPEECH = {"phonemes": 10, "width": 16, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "hidden": 32}
MEL_BINS = 80


def speech(batch: int, num_phonemes: int, num_frames: int, shape: dict[str, int]) -> Workload:
    return Workload(
        lambda: model_file("fastspeech2").build(**shape),
        spoken(batch, num_phonemes, num_frames, shape["phonemes"], MEL_BINS), loss_of("fastspeech2"), lr=1e-4,
        unit="frames", num_units=int(frames_of_bucket(batch, num_frames).sum()), optimizer=torch.optim.Adam,
    )  # fmt: skip


CLIP_BASE = {
    "vocabulary": 1024, "image": 224, "patch": 16, "vision_width": 640, "vision_layers": 12, "vision_heads": 10,
    "context": 77, "text_width": 448, "text_layers": 6, "text_heads": 7, "space": 512,
}  # fmt: skip
TINY_CLIP = {
    "vocabulary": 32, "image": 16, "patch": 8, "vision_width": 16, "vision_layers": 1, "vision_heads": 2,
    "context": 6, "text_width": 16, "text_layers": 1, "text_heads": 2, "space": 8,
}  # fmt: skip


def captioned(batch: int, shape: dict[str, int]) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Captions of full length and pictures, each pair of one of 1000 kinds: a pattern of squares, and words for it."""
    fixed = torch.Generator().manual_seed(0)
    end, length, side = shape["vocabulary"] - 1, shape["context"], shape["image"] // shape["patch"]
    patterns = torch.rand(1000, 3, side, side, generator=fixed) * 2 - 1
    words = torch.randint(2, end, (1000, length), generator=fixed)
    words[:, 0], words[:, -1] = 1, end

    def make(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        kinds = torch.randperm(1000, generator=generator)[:batch]
        images = patterns[kinds].repeat_interleave(shape["patch"], 2).repeat_interleave(shape["patch"], 3)
        return words[kinds], images + 0.3 * torch.randn(images.shape, generator=generator)

    return make


def pictures(batch: int, shape: dict[str, int]) -> Workload:
    return Workload(
        lambda: model_file("clip").build(**shape), captioned(batch, shape), loss_of("clip"), lr=2e-4, unit="pairs",
        num_units=batch,
    )  # fmt: skip


WORKLOADS = {
    "mlp": Workload(build_mlp, classes(128, 1000, 784), classification_loss, lr=1e-3, unit="samples", num_units=128),
    "llama 4 x 256": language(4, 256, STORIES110M),
    "llama 1 x 1024": language(1, 1024, STORIES110M),
    "bert": Workload(
        lambda: Bert(30522, width=768, layers=12, heads=12, hidden=3072, length=512),
        masked_words(8, 128, 30522), masked_loss, lr=1e-4, unit="tokens", num_units=8 * 128,
    ),
    "fastspeech2": speech(16, 40, 260, FASTSPEECH2),
    "fastspeech2 32": speech(32, 40, 260, FASTSPEECH2),
    "clip 12": pictures(12, CLIP_BASE),
    "clip 64": pictures(64, CLIP_BASE),
    "gpt2": Workload(
        build_gpt2, next_words(4, 256, 50257), gpt2_loss, lr=1e-4, unit="tokens", num_units=4 * 256,
    ),
    "tiny": Workload(
        lambda: build_mlp((8, 16, 4)), classes(4, 4, 8), classification_loss, lr=1e-3, unit="samples", num_units=4
    ),
    "tiny-llama": language(2, 8, TINY_LLAMA),
    "tiny-speech": speech(3, 5, 20, TINY_SPEECH),
    "tiny-clip": pictures(4, TINY_CLIP),
}  # fmt: skip


class Work:
    """One of these as a side trains it: with its optimizer, and the norm of the gradient limited to 1."""

    clip = 1.0
    threads: int | None = None  # as the side has them

    def __init__(self, model: str, accumulate: int) -> None:
        self.workload, self.accumulate = WORKLOADS[model], accumulate
        self.unit, self.num_units = self.workload.unit, self.workload.num_units * accumulate  # of a step

    def our_options(self) -> dict[str, Any]:
        """Of prepare(), besides precision, clip and threads."""
        return {}

    def build(self) -> nn.Module:
        torch.manual_seed(SEED)
        return self.workload.build()

    def gflop(self, model: nn.Module) -> float | None:
        """None: benchmark.py counts them, with what this process must not import."""
        return None

    def optimizer(self, model: nn.Module, fused: bool | None, compiled: bool = False) -> torch.optim.Optimizer:
        settings: dict[str, Any] = {"lr": self.workload.lr, "fused": fused}
        return self.workload.optimizer(model.parameters(), **settings)

    def our_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.optimizer(model, fused=None)

    def our_freezer(self, model: nn.Module) -> None:
        return None

    plain_freezer = our_freezer

    def step(self, number: int) -> tuple[list[tuple[Tensor, ...]], float]:
        """The micro-batches of a step, a function of the seed and its number, and its learning rate."""
        generator = torch.Generator().manual_seed(1_000_003 * SEED + number + 1)
        return [self.workload.batch(generator) for _ in range(self.accumulate)], self.workload.lr

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return self.workload.loss(model, *batch)

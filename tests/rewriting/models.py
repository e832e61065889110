"""Small models of many kinds, as users write them: nothing in them knows of this project.

Each comes with its data, a few fixed batches that it can learn, and its loss. Dropout is off: two runs are compared.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are built from their configurations: nothing to download
import transformers

VOCABULARY, CLASSES, NUM_BATCHES, ROWS, LENGTH = 64, 8, 4, 4, 16
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """make_model() gives the same weights at each call; loss(model, batch) is what the user's loop has."""

    build: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    learning_rate: float = 1e-3

    def make_model(self) -> nn.Module:
        torch.manual_seed(0)
        random.seed(0)
        return self.build().train()

    def make_batches(self) -> list[Batch]:
        generator = torch.Generator().manual_seed(1)
        return [self.make_batch(generator) for _ in range(NUM_BATCHES)]


# ---- Hugging Face, built from their configurations -----------------------------------------------------------------


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.num_labels = CLASSES
    return transformers.ViTForImageClassification(config)


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=8, d_model=32, encoder_layers=2, encoder_attention_heads=4,
        decoder_layers=2, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=16,
        max_target_positions=LENGTH, dropout=0.0, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


# ---- plain torch ---------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn1(self.conv1(x)))
        return self.relu(x + self.bn2(self.conv2(h)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(Residual(16), nn.MaxPool2d(2), Residual(16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(pixel_values)).mean(dim=(2, 3)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.lstm = nn.LSTM(32, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(input_ids))
        return self.head(hidden)


class TiedWeights(nn.Module):
    """The embedding is the matrix of the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.head = nn.Linear(32, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(input_ids)))


class RoundFunction(torch.autograd.Function):
    """Rounds to eighths forward; backward as if it were not there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.round(x * 8) / 8

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return dy * (x.abs() < 4)


class CustomFunction(nn.Module):
    """With softplus behind it, so that the steps of rounding do not decide the comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(48, 64), nn.Linear(64, CLASSES)
        self.mix = nn.Parameter(torch.full((64,), 0.1))

    def forward(self, pixel_values: Tensor) -> Tensor:
        h = self.a(pixel_values.flatten(1)[:, :48])
        return self.b(F.softplus(h) + self.mix * RoundFunction.apply(h))


class SharedModule(nn.Module):
    """One block under two names, run three times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.first = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
        self.second = self.first
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in (self.first, self.second, self.first):
            x = x + block(x)
        return self.head(x)


# ---- data and losses -----------------------------------------------------------------------------------------------


def tokens(generator: torch.Generator) -> Batch:
    return {"input_ids": torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=generator)}


def masked_tokens(generator: torch.Generator) -> Batch:
    """Every fourth token is to be guessed; the last row is shorter than the others."""
    ids = tokens(generator)["input_ids"]
    labels = torch.full_like(ids, -100)
    labels[:, ::4] = ids[:, ::4]
    mask = torch.ones_like(ids)
    mask[-1, LENGTH // 2 :] = 0
    return {"input_ids": ids.masked_fill(labels >= 0, 1), "attention_mask": mask, "labels": labels}


def images(generator: torch.Generator) -> Batch:
    return {
        "pixel_values": torch.randn(ROWS, 3, 16, 16, generator=generator),
        "labels": torch.randint(0, CLASSES, (ROWS,), generator=generator),
    }


def speech(generator: torch.Generator) -> Batch:
    return {
        "input_features": torch.randn(ROWS, 8, 32, generator=generator),
        "labels": torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=generator),
    }


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The model makes it from the labels."""
    return model(**batch).loss


def causal_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Made by the user from the logits."""
    ids = batch["input_ids"]
    return F.cross_entropy(model(ids)[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


def class_loss(model: nn.Module, batch: Batch) -> Tensor:
    return nn.CrossEntropyLoss()(model(batch["pixel_values"]), batch["labels"])


CASES = {
    "llama": Case(llama, tokens, causal_loss),
    "gpt2": Case(gpt2, tokens, causal_loss),
    "bert": Case(bert, masked_tokens, own_loss),
    "vit": Case(vit, images, own_loss),
    "whisper": Case(whisper, speech, own_loss),
    "resnet": Case(ResNet, images, class_loss),
    "lstm": Case(Lstm, tokens, next_token_loss, 3e-3),
    "tied weights": Case(TiedWeights, tokens, next_token_loss),
    "custom function": Case(CustomFunction, images, class_loss),
    "shared module": Case(SharedModule, tokens, next_token_loss),
}

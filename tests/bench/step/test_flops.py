"""FLOPs of the models of `bench step`: as they are counted, as torch.utils.flop_counter counts them, and by hand.

By hand: a weight of a linear layer or a convolution is 2 operations a row forward and 4 backward, for the gradients of
the input and of the weight. Attention is two products of length x width a word and layer, and four backward:
12 x length^2 x width, half if causal. What the counts have besides is named at each model.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fullstride.bench.step import benchmark as step
from fullstride.bench.step.models import (
    CLIP_BASE,
    FASTSPEECH2,
    STORIES110M,
    TINY_CLIP,
    TINY_LLAMA,
    TINY_SPEECH,
    WORKLOADS,
)

Shape = dict[str, int]


def weights(model: nn.Module, rows: Callable[[str], int]) -> int:
    """6 x weights x rows of the layer of that name. Conv1D is GPT-2's linear layer."""
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv1d) or is_conv1d_of_gpt2(m)]
    return sum(6 * module.weight.numel() * rows(name) for name, module in layers)


def is_conv1d_of_gpt2(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def mlp(batch: int, first: int) -> Callable[[nn.Module], int]:
    """Nobody asks for the gradient of a sample, so the first layer, of so many weights, has no dx."""
    return lambda model: weights(model, lambda _: batch) - 2 * batch * first


def words(batch: int, length: int, shape: Shape, causal: bool = True) -> Callable[[nn.Module], int]:
    attention = (6 if causal else 12) * batch * length**2 * shape["width"] * shape["layers"]
    return lambda model: weights(model, lambda _: batch * length) + attention


def speech(batch: int, num_phonemes: int, num_frames: int, shape: Shape) -> Callable[[nn.Module], int]:
    def rows(layer: str) -> int:
        return batch * (num_frames if layer.startswith(("decoder", "projection")) else num_phonemes)

    squares = shape["encoder_layers"] * num_phonemes**2 + shape["decoder_layers"] * num_frames**2
    return lambda model: weights(model, rows) + 12 * batch * squares * shape["width"]


def pictures(batch: int, shape: Shape) -> Callable[[nn.Module], int]:
    """The patches of a picture have no dx. The loss multiplies all pictures by all captions."""
    patches = (shape["image"] // shape["patch"]) ** 2
    lengths = {"vision": patches + 1, "text": shape["context"]}

    def rows(layer: str) -> int:
        return batch * (1 if layer.endswith("projection") else lengths[layer.partition(".")[0]])

    vision, text = (lengths[part] ** 2 * shape[f"{part}_width"] * shape[f"{part}_layers"] for part in lengths)
    attention = 12 * batch * vision + 6 * batch * text  # the text is causal
    patching = 4 * batch * patches * (3 * shape["patch"] ** 2) * shape["vision_width"]
    loss = 6 * batch * batch * shape["space"]
    return lambda model: weights(model, rows) + attention + patching + loss


BASE = {"width": 768, "layers": 12}  # of BERT and GPT-2
BY_HAND = {
    "mlp": mlp(128, 784 * 4096),
    "llama 4 x 256": words(4, 256, STORIES110M),
    "llama 1 x 1024": words(1, 1024, STORIES110M),
    "bert": words(8, 128, BASE, causal=False),
    "fastspeech2": speech(16, 40, 260, FASTSPEECH2),
    "fastspeech2 32": speech(32, 40, 260, FASTSPEECH2),
    "clip 12": pictures(12, CLIP_BASE),
    "clip 64": pictures(64, CLIP_BASE),
    "gpt2": words(4, 256, BASE),
    "tiny": mlp(4, 8 * 16),
    "tiny-llama": words(2, 8, TINY_LLAMA),
    "tiny-speech": speech(3, 5, 20, TINY_SPEECH),
    "tiny-clip": pictures(4, TINY_CLIP),
}


def built(name):
    """On the meta device: shapes alone."""
    if name == "gpt2":
        pytest.importorskip("transformers")
    with torch.device("meta"):
        return WORKLOADS[name].build().train()


def by_torch(name, model):
    """With plain attention: its kernels for the CPU count as nothing there."""
    batch = [x.to("meta") for x in WORKLOADS[name].batch(torch.Generator().manual_seed(0))]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        WORKLOADS[name].loss(model, *batch).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", WORKLOADS)
def test_counted_flops_are_those_by_hand_and_additions_of_embeddings(name):
    model = built(name)
    counted = step.counted(name)
    assert counted.total - counted.embeddings == BY_HAND[name](model)


@pytest.mark.parametrize("name", WORKLOADS)
def test_counted_flops_are_what_torch_counts_and_embeddings_but_the_masked_half_of_causal_attention(name):
    model = built(name)
    counted = step.counted(name)
    assert counted.total - counted.embeddings + counted.masked == by_torch(name, model)


@pytest.mark.parametrize("name", WORKLOADS)
def test_additions_of_embeddings_are_next_to_nothing(name):
    built(name)
    counted = step.counted(name)
    assert counted.embeddings <= 5e-3 * counted.total
    if not name.startswith("tiny"):
        assert counted.embeddings < 1e-4 * counted.total

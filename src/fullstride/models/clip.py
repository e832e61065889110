"""CLIP: pictures and captions become vectors of one space, where those that belong together lie close.

    image = W_i norm(blocks(norm([class; patches] + positions)))[class]       (B, E)
    text  = W_t norm(blocks(embedding[tokens] + positions))[end]              (N, E), causal
    logits = e^s <image, text>, both of length 1                              (B, N)
    loss  = (cross-entropy along the rows + along the first B columns) / 2

B pictures, N >= B captions: the first B are theirs, the others wrong ones to tell apart from them. E wide is the space;
e^s, the inverse of the temperature, is learnt. Radford et al., https://arxiv.org/abs/2103.00020; the layers are those
of Hugging Face's CLIPModel. With `chunk` the encoders take so many at a time and compute them once more in backward:
the loss is that of all, the memory that of a chunk (Gao et al., https://arxiv.org/abs/2101.06983).
Plain PyTorch: the stock side of a comparison loads this file by its path, so it must not import anything of Fullstride.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

START = 0.07  # of the temperature
MOST_SCALE = 100.0  # of the logits, as in the paper: 1 / 100 is the lowest temperature


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.head_dim, self.is_causal = heads, width // heads, is_causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        key = self.key(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


class QuickGELU(nn.Module):
    """That of OpenAI's weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, is_causal: bool, activation: str, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, is_causal)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            QuickGELU() if activation == "quick_gelu" else nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Vision(nn.Module):
    """A ViT: squares of a picture are its words."""

    def __init__(
        self, image: int, patch: int, width: int, layers: int, heads: int, space: int, activation: str, dropout: float
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_token = nn.Parameter(torch.empty(width))
        self.positions = nn.Parameter(torch.empty((image // patch) ** 2 + 1, width))
        self.first_norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, False, activation, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, space, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, E)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)  # (B, P, D)
        first = self.class_token.expand(len(images), 1, -1)
        x = self.first_norm(torch.cat((first, patches), dim=1) + self.positions)
        for block in self.blocks:
            x = block(x)
        return self.projection(self.norm(x[:, 0]))


class Text(nn.Module):
    def __init__(
        self, vocabulary: int, end: int, context: int, width: int, layers: int, heads: int, space: int,
        activation: str, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.end = end
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.ModuleList(Block(width, heads, True, activation, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, space, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T) -> (N, E): what the first end token of each has seen. What follows it, padding, is seen by nobody."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        ends = (tokens == self.end).int().argmax(dim=1)
        return self.projection(self.norm(x[torch.arange(len(x)), ends]))


class ContrastiveLoss(nn.Module):
    def forward(self, image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
        """image (B, E) and text (N, E), N >= B, of length 1; the first B texts belong to the images."""
        logits = scale * image @ text.t()
        targets = torch.arange(len(image), device=image.device)
        return (F.cross_entropy(logits, targets) + F.cross_entropy(logits[:, : len(image)].t(), targets)) / 2


class CLIP(nn.Module):
    def __init__(
        self, vocabulary: int, image: int, patch: int, vision_width: int, vision_layers: int, vision_heads: int,
        context: int, text_width: int, text_layers: int, text_heads: int, space: int, end: int | None = None,
        activation: str = "gelu", dropout: float = 0.0, chunk: int | None = None,
    ) -> None:  # fmt: skip
        """end: the token at which a caption ends; None: the last of the vocabulary."""
        super().__init__()
        self.chunk = chunk
        self.vision = Vision(image, patch, vision_width, vision_layers, vision_heads, space, activation, dropout)
        end = vocabulary - 1 if end is None else end
        self.text = Text(
            vocabulary, end, context, text_width, text_layers, text_heads, space, activation, dropout
        )  # fmt: skip
        self.log_scale = nn.Parameter(torch.tensor(-math.log(START)))
        self.loss = ContrastiveLoss()
        self.initialise()

    def initialise(self) -> None:
        """Normal. What is added to the stream is smaller the more layers add to it."""
        for encoder in (self.vision, self.text):
            width, depth = encoder.norm.weight.numel(), 2 * len(encoder.blocks)
            for name, parameter in encoder.named_parameters():
                if name.endswith(("class_token", "positions", "embedding.weight")):
                    nn.init.normal_(parameter, std=0.02)
                elif name.endswith(("output.weight", "mlp.2.weight")):
                    nn.init.normal_(parameter, std=(width * depth) ** -0.5)
                elif parameter.dim() > 1:
                    nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

    @property
    def scale(self) -> Tensor:
        """Of the logits: 1 / temperature."""
        return self.log_scale.clamp(max=math.log(MOST_SCALE)).exp()

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        """tokens (N, T), images (B, 3, H, W) -> the loss."""
        self.log_scale.data.clamp_(max=math.log(MOST_SCALE))  # where a step left it above, it has no gradient
        image = F.normalize(self._encode(self.vision, images), dim=-1)
        text = F.normalize(self._encode(self.text, tokens), dim=-1)
        return self.loss(image, text, self.scale)

    def _encode(self, encoder: nn.Module, inputs: Tensor) -> Tensor:
        parts = inputs.split(self.chunk or max(1, len(inputs)))
        if len(parts) > 1 and torch.is_grad_enabled():
            return torch.cat([checkpoint(encoder, part, use_reentrant=False) for part in parts])
        found = [encoder(part) for part in parts]
        return torch.cat(found) if len(found) > 1 else found[0]


def build(**arguments: Any) -> CLIP:
    return CLIP(**arguments)


def loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """batch: tokens (N, T) and images (B, 3, H, W)."""
    result: Tensor = model(*batch)
    return result


def encode_images(model: nn.Module, images: Tensor) -> Tensor:
    """(B, E), of length 1."""
    return F.normalize(model.vision(images).float(), dim=-1)  # type: ignore[operator]


def encode_texts(model: nn.Module, tokens: Tensor) -> Tensor:
    """(N, E), of length 1."""
    return F.normalize(model.text(tokens).float(), dim=-1)  # type: ignore[operator]

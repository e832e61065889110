"""Text from a Llama, token by token, with a cache of keys and values.

    for token in generate(model, prompt, 200, temperature=0.8, top_p=0.95, seed=1):
        ...

The weights are read once, in fp32 whatever the model was prepared in, and laid out for what generating does: products
of one row. So the model itself is not run; its mode, its gradients and torch's random numbers stay as they are.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .models.llama import Llama
from .ops.glu import swiglu
from .ops.products import product
from .ops.rms_norm import rms_norm
from .ops.rope import rope

_FEW_ROWS = 8  # below, a product is bound by reading the matrix
_FIRST_LOOK = 256  # candidates: sorting all of 32000 takes 2.8 ms, taking out the likeliest 256 0.1 ms


def generate(
    model: nn.Module,
    prompt: Sequence[int],
    num_tokens: int,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """At most `num_tokens` tokens that follow the prompt, as they come; `stop` ends them and is not among them.

    temperature: 0 takes the likeliest token each time. top_p: draws from the fewest tokens that have this probability
    together. Where the context is full, the last half of it is read again and the text goes on. The model may not
    change before the last token.
    """
    llama = _check(model, prompt, num_tokens, temperature, top_p)
    return _tokens(Decoder(llama), prompt, num_tokens, Sampler(temperature, top_p, seed), stop)


def _check(
    model: nn.Module, prompt: Sequence[int], num_tokens: int, temperature: float, top_p: float
) -> Llama:
    inner = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    if not isinstance(inner, Llama):
        raise ValueError(f"generate: expected a Llama, got {type(inner).__name__}, which does not write text")
    vocabulary = inner.embedding.num_embeddings
    if not prompt:
        raise ValueError("generate: expected a prompt of one token or more, got none; begin with the tokenizer's bos")
    foreign = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if foreign is not None:
        raise ValueError(f"generate: expected tokens below {vocabulary}, the model's vocabulary, got {foreign}")
    if num_tokens < 0:
        raise ValueError(f"generate: expected a number of tokens from 0 on, got {num_tokens}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"generate: expected a temperature from 0 on, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"generate: expected top_p above 0 and at most 1, got {top_p}")
    return inner


def _tokens(
    decoder: "Decoder", prompt: Sequence[int], num_tokens: int, sampler: "Sampler", stop: int | None
) -> Iterator[int]:
    recent = deque(prompt, decoder.context)
    unread, num_read = list(recent), 0
    for _ in range(num_tokens):
        if num_read + len(unread) > decoder.context:
            unread, num_read = list(recent)[-max(1, decoder.context // 2) :], 0
        # Entered anew for each token: between two of them the caller's code runs.
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            token = sampler(decoder.read(unread, num_read))
        if token == stop:
            return
        yield token
        num_read += len(unread)
        recent.append(token)
        unread = [token]


class Decoder:
    """The next token's logits. Queries, keys and values are one product here, gate and up another."""

    @torch.inference_mode()
    def __init__(self, model: Llama) -> None:
        layers: list[Any] = list(model.layers)
        attention = layers[0].attention
        self.heads, self.kv_heads, self.head_dim = attention.heads, attention.kv_heads, attention.head_dim
        self.context, self.eps = len(model.cos), layers[0].attention_norm.eps
        self.cos, self.sin = model.cos.float(), model.sin.float()
        self.embedding = _weight(model.embedding)
        self.layers = [_DecoderLayer(layer) for layer in layers]
        self.norm, self.head = _weight(model.norm), _matrix(model.head)
        shape = len(self.layers), 2, 1, self.kv_heads, self.context, self.head_dim
        self.cache = torch.empty(shape, dtype=torch.float32, device="cpu")

    def read(self, tokens: Sequence[int], start: int) -> Tensor:
        """tokens: those at `start` and on, several only at the start itself -> logits (vocabulary) after the last."""
        end = start + len(tokens)
        update = self.embedding[torch.tensor(tokens, device="cpu")]
        x = torch.zeros_like(update)
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            y, x = rms_norm(x, layer.attention_norm, self.eps, residual=update)
            mixed = self._attend(_times(y, layer.query_key_value), keys, values, start, end)
            y, x = rms_norm(x, layer.mlp_norm, self.eps, residual=_times(mixed, layer.output))
            update = _times(swiglu(_times(y, layer.gate_up)), layer.down)
        y, _ = rms_norm(x[-1:], self.norm, self.eps, residual=update[-1:])
        return _times(y, self.head).view(-1)

    def _attend(self, projected: Tensor, keys: Tensor, values: Tensor, start: int, end: int) -> Tensor:
        """projected (T, (H + 2 KV heads) d), keys and values the layer's cache -> (T, H d)."""
        heads, kv_heads, length = self.heads, self.kv_heads, end - start
        split = projected.view(1, length, heads + 2 * kv_heads, self.head_dim)
        turned = rope(split[:, :, : heads + kv_heads], self.cos, self.sin, offset=start).transpose(1, 2)
        keys[:, :, start:end] = turned[:, heads:]
        values[:, :, start:end] = split[:, :, heads + kv_heads :].transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            turned[:, :heads], keys[:, :, :end], values[:, :, :end], is_causal=length > 1, enable_gqa=heads != kv_heads
        )
        return mixed.transpose(1, 2).reshape(length, heads * self.head_dim)


class _DecoderLayer:
    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.attention, layer.mlp
        self.attention_norm, self.mlp_norm = _weight(layer.attention_norm), _weight(layer.mlp_norm)
        self.query_key_value = _matrix(attention.query, attention.key, attention.value)
        self.output = _matrix(attention.output)
        self.gate_up = _matrix(mlp.gate, mlp.up)
        self.down = _matrix(mlp.down)


def _weight(module: nn.Module) -> Tensor:
    """In fp32, exact if it is split: its state_dict knows."""
    weight: Tensor = module.state_dict()["weight"]
    return weight.float()


def _matrix(*layers: nn.Module) -> Tensor:
    """The weights of linear layers side by side, (in, out); laid out like that where there are more out than in.

    A row times such a matrix is read at 14 to 22 GB/s on 2 cores of an AMD EPYC, at 4 to 12 in the layout of F.linear,
    and how fast the weights are read is how fast tokens come. From 768 to 288 it is 8 against 12.
    """
    weights = [_weight(layer) for layer in layers]
    matrix = (weights[0] if len(weights) == 1 else torch.cat(weights)).t()
    return matrix.contiguous() if matrix.shape[1] >= matrix.shape[0] else matrix


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.mm(x, matrix) if len(x) < _FEW_ROWS else product(x, matrix)


class Sampler:
    """Draws a token from logits: a function of them, of the seed and of how many were drawn before."""

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        self.temperature, self.top_p = temperature, top_p
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def __call__(self, logits: Tensor) -> int:
        highest = logits.max()
        if not math.isfinite(highest):  # of NaN and anything, the larger is NaN
            raise ValueError(
                "generate: the model's logits are not finite, so it has diverged; take a checkpoint from before"
            )
        if self.temperature == 0:
            return int(logits.argmax())
        shares = ((logits - highest) / self.temperature).softmax(0)
        totals, tokens = self._candidates(shares)
        draw = torch.rand((), dtype=torch.float64, device="cpu", generator=self.generator) * totals[-1]
        place = min(int(torch.searchsorted(totals, draw, right=True)), len(totals) - 1)
        return place if tokens is None else int(tokens[place])

    def _candidates(self, shares: Tensor) -> tuple[Tensor, Tensor | None]:
        """(running total of the shares, tokens) of the fewest tokens that reach top_p; None: all, in their order."""
        if self.top_p == 1:
            return shares.cumsum(0, dtype=torch.float64), None
        count = _FIRST_LOOK
        while True:
            values, tokens = shares.topk(min(count, len(shares)))
            totals = values.cumsum(0, dtype=torch.float64)
            if totals[-1] >= self.top_p or count >= len(shares):
                break
            count *= 16
        kept = int(torch.searchsorted(totals, self.top_p)) + 1
        return totals[:kept], tokens[:kept]

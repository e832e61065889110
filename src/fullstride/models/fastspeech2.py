"""FastSpeech 2: phonemes to mel frames, all at once, by way of each phoneme's duration, pitch and energy.

    x = encoder(embedding[phoneme] + positions) + speaker              (B, P, D)
    x = x + pitch_embedding[bin(pitch)] + energy_embedding[bin(energy)]
    y = x, each phoneme repeated for as many frames as it lasts        (B, T, D)
    mel = projection(decoder(y + positions))                           (B, T, 80)

Three predictors read durations, pitch and energy off x; in training the true ones are used and the predictors are
scored. B sentences, P phonemes, T frames, D wide. Phoneme 0 is padding. Everything that is padding is zero before each
convolution, so a sentence comes out the same alone and in a batch. Ren et al., https://arxiv.org/abs/2006.04558; norms
stand before the layers, as in most later Transformers, instead of behind them, which was not tried here.
Plain PyTorch: the stock side of a comparison loads this file by its path, so it must not import anything of Fullstride.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PADDING = 0  # the phoneme that is none
_RANGE = 4.0  # standard deviations from the mean, over which the bins of pitch and energy lie
_LONGEST = 6.0  # log(1 + frames) of a phoneme that is predicted: 4.7 s, whatever an untrained model says


class Prediction(NamedTuple):
    mel: Tensor  # (B, T, bins)
    refined: Tensor | None  # the same after the post-net, if there is one
    log_durations: Tensor  # (B, P), log(1 + frames)
    pitch: Tensor  # (B, P), in standard deviations
    energy: Tensor  # (B, P), in standard deviations
    durations: Tensor  # (B, P) frames, those that were used

    @property
    def final_mel(self) -> Tensor:
        return self.mel if self.refined is None else self.refined


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, is_real: Tensor) -> Tensor:
        """x (B, T, D), is_real (B, T): only what is real is looked at."""
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        key = self.key(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=is_real[:, None, None, :])
        return self.output(mixed.transpose(1, 2).flatten(2))


class ConvFeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.spread = nn.Conv1d(width, hidden, kernel, padding=kernel // 2)
        self.dropout = nn.Dropout(dropout)
        self.gather = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D), zero where there is padding."""
        x = F.relu(self.spread(x.transpose(1, 2))).transpose(1, 2)
        return self.gather(self.dropout(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = ConvFeedForward(width, hidden, kernel, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, is_real: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), is_real))
        return x + self.dropout(self.feed(self.feed_norm(x) * is_real[:, :, None]))


class Stack(nn.Module):
    """Blocks with positions before and a norm behind them."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, kernel, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, positions: Tensor, is_real: Tensor) -> Tensor:
        """x (B, T, D), positions (T, D)."""
        x = self.dropout(x + positions)
        for block in self.blocks:
            x = block(x, is_real)
        return self.norm(x) * is_real[:, :, None]


class Predictor(nn.Module):
    """One number a phoneme."""

    def __init__(self, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.first_norm = nn.LayerNorm(width)
        self.second = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.second_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, 1)

    def forward(self, x: Tensor, is_real: Tensor) -> Tensor:
        """x (B, P, D), zero where there is padding -> (B, P)."""
        x = F.relu(self.first(x.transpose(1, 2))).transpose(1, 2)
        x = self.dropout(self.first_norm(x)) * is_real[:, :, None]
        x = F.relu(self.second(x.transpose(1, 2))).transpose(1, 2)
        x = self.dropout(self.second_norm(x))
        return self.output(x).squeeze(2) * is_real


class PostNet(nn.Module):
    """Convolutions over the mel frames whose sum with them is the better mel.

    Without the batch norms of Tacotron 2's: what they measure would depend on how much padding there is.
    """

    def __init__(self, bins: int, width: int, dropout: float, kernel: int = 5, layers: int = 5) -> None:
        super().__init__()
        widths = [bins, *[width] * (layers - 1), bins]
        self.layers = nn.ModuleList(
            nn.Conv1d(widths[i], widths[i + 1], kernel, padding=kernel // 2) for i in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, mel: Tensor, is_real: Tensor) -> Tensor:
        """mel (B, T, bins) -> (B, T, bins)."""
        x = mel
        for i, layer in enumerate(self.layers):
            x = layer((x * is_real[:, :, None]).transpose(1, 2)).transpose(1, 2)
            if i < len(self.layers) - 1:
                x = self.dropout(torch.tanh(x))
        return mel + x


class FastSpeech2(nn.Module):
    edges: Tensor

    def __init__(
        self, phonemes: int, speakers: int = 1, width: int = 256, encoder_layers: int = 4, decoder_layers: int = 4,
        heads: int = 2, hidden: int = 768, kernel: int = 3, predictor_kernel: int = 3, mel_bins: int = 80,
        variance_bins: int = 256, dropout: float = 0.1, predictor_dropout: float = 0.3, postnet: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(phonemes, width)
        self.encoder = Stack(encoder_layers, width, heads, hidden, kernel, dropout)
        self.speakers = nn.Embedding(speakers, width) if speakers > 1 else None
        self.duration_predictor = Predictor(width, predictor_kernel, predictor_dropout)
        self.pitch_predictor = Predictor(width, predictor_kernel, predictor_dropout)
        self.energy_predictor = Predictor(width, predictor_kernel, predictor_dropout)
        self.pitch_embedding = nn.Embedding(variance_bins, width)
        self.energy_embedding = nn.Embedding(variance_bins, width)
        self.decoder = Stack(decoder_layers, width, heads, hidden, kernel, dropout)
        self.projection = nn.Linear(width, mel_bins)
        self.postnet = PostNet(mel_bins, width, dropout) if postnet else None
        self.register_buffer("edges", torch.linspace(-_RANGE, _RANGE, variance_bins - 1), persistent=False)
        for embedding in (m for m in self.modules() if isinstance(m, nn.Embedding)):
            nn.init.normal_(embedding.weight, std=width**-0.5)

    def forward(
        self, phonemes: Tensor, speakers: Tensor, durations: Tensor | None = None, pitch: Tensor | None = None,
        energy: Tensor | None = None, num_frames: int | None = None, speed: float = 1.0, raise_pitch: float = 0.0,
        raise_energy: float = 0.0,
    ) -> Prediction:  # fmt: skip
        """phonemes (B, P), speakers (B,); durations, pitch and energy (B, P), each predicted if it is not given.

        num_frames: T, where it is known. speed: of what is predicted. raise_*: added to it, in standard deviations.
        """
        is_phoneme = phonemes != PADDING
        x = self.embedding(phonemes) * math.sqrt(self.width)
        x = self.encoder(x, self.positions(phonemes.shape[1]), is_phoneme)
        if self.speakers is not None:
            x = (x + self.speakers(speakers)[:, None, :]) * is_phoneme[:, :, None]
        log_durations = self.duration_predictor(x, is_phoneme)
        predicted_pitch = self.pitch_predictor(x, is_phoneme)
        predicted_energy = self.energy_predictor(x, is_phoneme)
        if durations is None:
            durations = frames_of(log_durations, speed) * is_phoneme
        pitch = predicted_pitch + raise_pitch if pitch is None else pitch
        energy = predicted_energy + raise_energy if energy is None else energy
        x = x + self.pitch_embedding(torch.bucketize(pitch.float(), self.edges))
        x = x + self.energy_embedding(torch.bucketize(energy.float(), self.edges))
        x, is_frame = repeat(x, durations, num_frames)
        mel = self.projection(self.decoder(x, self.positions(x.shape[1]), is_frame))
        refined = None if self.postnet is None else self.postnet(mel, is_frame)
        return Prediction(mel, refined, log_durations, predicted_pitch, predicted_energy, durations)

    def positions(self, length: int) -> Tensor:
        """(length, D): sine and cosine of position / 10000^(2i / D)."""
        device = self.edges.device
        frequencies = torch.exp(torch.arange(0, self.width, 2, device=device) * (-math.log(10000.0) / self.width))
        angles = torch.arange(length, device=device)[:, None] * frequencies
        return torch.cat((angles.sin(), angles.cos()), dim=1)


def frames_of(log_durations: Tensor, speed: float = 1.0) -> Tensor:
    """Whole frames, such that rounding does not add up: the ends of phonemes are rounded, not their lengths."""
    lengths = (log_durations.float().clamp(max=_LONGEST).exp() - 1).clamp(min=0) / speed
    ends = lengths.cumsum(1).round().long()
    return torch.diff(ends, dim=1, prepend=torch.zeros_like(ends[:, :1]))


def repeat(x: Tensor, durations: Tensor, num_frames: int | None = None) -> tuple[Tensor, Tensor]:
    """The length regulator: x (B, P, D), each phoneme for as many frames as it lasts -> (B, T, D), is_frame (B, T).

    Frame t is of the first phoneme that ends behind t; the rows are looked up as an embedding's are.
    """
    batch, num_phonemes, width = x.shape
    ends = durations.cumsum(1)
    total = ends[:, -1:]
    length = max(1, int(total.max())) if num_frames is None else num_frames
    frames = torch.arange(length, device=x.device).expand(batch, -1).contiguous()
    rows = torch.searchsorted(ends, frames, right=True).clamp(max=num_phonemes - 1)
    first = torch.arange(batch, device=x.device)[:, None] * num_phonemes
    is_frame = frames < total
    return F.embedding(rows + first, x.reshape(-1, width)) * is_frame[:, :, None], is_frame


def losses(prediction: Prediction, batch: Sequence[Tensor], counts: Tensor | None = None) -> dict[str, Tensor]:
    """Means over what is no padding: L1 of the mel, squared errors of log duration, pitch and energy.

    counts: (frames, phonemes) to divide by instead of the batch's own, where it is a part of a larger one.
    """
    _, _, durations, pitch, energy, mel = batch
    is_phoneme, is_frame = _real(batch)
    frames, spoken = counts_of(batch) if counts is None else counts
    parts = {
        "mel": _sum((prediction.mel - mel).abs().mean(2), is_frame) / frames,
        "duration": _sum((prediction.log_durations.float() - torch.log1p(durations.float())) ** 2, is_phoneme) / spoken,
        "pitch": _sum((prediction.pitch.float() - pitch) ** 2, is_phoneme) / spoken,
        "energy": _sum((prediction.energy.float() - energy) ** 2, is_phoneme) / spoken,
    }
    if prediction.refined is not None:
        parts["refined"] = _sum((prediction.refined - mel).abs().mean(2), is_frame) / frames
    return parts


def counts_of(batch: Sequence[Tensor]) -> Tensor:
    """(frames, phonemes) that are no padding, 1 at least."""
    is_phoneme, is_frame = _real(batch)
    return torch.stack((is_frame.sum(), is_phoneme.sum())).clamp(min=1)


def _real(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(phonemes, frames) that are no padding."""
    phonemes, _, durations, _, _, mel = batch
    frames = torch.arange(mel.shape[1], device=mel.device)
    return phonemes != PADDING, frames < durations.sum(1, keepdim=True)


def _sum(values: Tensor, is_real: Tensor) -> Tensor:
    return (values * is_real).sum()


def build(**arguments: int | float | bool) -> FastSpeech2:
    return FastSpeech2(**arguments)  # type: ignore[arg-type]


def predict(model: nn.Module, batch: Sequence[Tensor]) -> Prediction:
    """With the true durations, pitch and energy."""
    phonemes, speakers, durations, pitch, energy, mel = batch
    prediction: Prediction = model(phonemes, speakers, durations, pitch, energy, mel.shape[1])
    return prediction


def loss(model: nn.Module, batch: Sequence[Tensor], counts: Tensor | None = None) -> Tensor:
    """batch: phonemes (B, P) int64, 0 is padding; speakers (B,) int64; durations (B, P) int64 frames; pitch and energy
    (B, P) in standard deviations; mel (B, T, bins)."""
    return torch.stack(list(losses(predict(model, batch), batch, counts).values())).sum()

"""Pictures and captions as batches for CLIP: tokens (N, T) and images (B, 3, size, size), N >= B.

    image    = (pixel / 255 - mean) / std, shifted and lit otherwise in each epoch
    caption  = one of its phrasings, another in each epoch
    wrong    captions of the same picture follow those of all, as many as the epoch asks for

All of it is a function of (seed, epoch, index). Epoch 0 of a set without augmentation is what evaluations see.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...tokens.captions import Captions
from .. import _random
from ..sharing import Share
from .source import Kind, Source

_LIGHT, _PHRASES, _WRONG = 21, 22, 23  # streams of the seed
_MOST_REMEMBERED = 256 << 20  # bytes of pictures
_DRAWS = 1 << 30  # numbers that choose a phrasing


@dataclass(frozen=True)
class Scaling:
    """Bytes to what the model is given: (value - mean) / std of values from 0 to 1, by channel."""

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __call__(
        self, pictures: NDArray[np.uint8],
        gain: NDArray[np.float64] | None = None, offset: NDArray[np.float64] | None = None,
    ) -> Tensor:  # fmt: skip
        """float32 (B, 3, size, size) of (B, size, size, 3). gain, offset: one each a picture, of the distance from grey
        and of the value; what leaves the range is cut."""
        x = torch.from_numpy(pictures).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        if gain is not None and offset is not None:
            factor, shift = (torch.from_numpy(v.astype(np.float32))[:, None, None, None] for v in (gain, offset))
            x.mul_(factor).add_(255 * shift + 127.5 * (1 - factor)).clamp_(0, 255)
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (self.mean, self.std))
        return x.mul_(1 / (255 * std)).sub_(mean / std)


@dataclass(frozen=True)
class Change:
    """What happens to a picture in training. Never mirrored: captions speak of left and right."""

    shift: float = 0.06  # of the size, at most, along each axis; the edge is repeated
    brightness: float = 0.1  # added or taken away, of the whole range
    contrast: float = 0.2  # 0.2: from 0.8 to 1.2 of the distance from grey


@dataclass(frozen=True)
class Wrong:
    """How many pictures of a batch bring a wrong caption: shares that rise from epoch `start` to epoch `full`."""

    medium: float = 0.0
    hard: float = 0.0
    start: float = 0.0
    full: float = 0.0

    def rise(self, epochs: NDArray[np.int64]) -> NDArray[np.float64]:
        """The part of the shares that holds in these epochs."""
        if self.full <= self.start:
            return (epochs >= self.start).astype(np.float64)
        return np.clip((epochs - self.start) / (self.full - self.start), 0.0, 1.0)


@dataclass
class Pairs:
    """remembers: pictures that take long to make are kept once made, if all of them take little memory."""

    source: Source
    captions: Captions
    context: int  # tokens at most
    seed: int = 0
    change: Change | None = None
    wrong: Wrong | None = None
    remembers: bool = False
    scaling: Scaling = Scaling()
    _known: "_Known | None" = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        texts = self.texts(indices, epochs)
        return self.captions.batch(texts, self.context), self.prepared(self.pictures(indices), indices, epochs)

    def batch_part(
        self, indices: NDArray[np.int64], epochs: NDArray[np.int64], share: Share
    ) -> tuple[Tensor, Tensor]:
        """Of one batch: its own pairs, and its part of the wrong captions of all, which were chosen among all."""
        texts, own = self.texts(indices, epochs), share.cut(len(indices))
        wrong = texts[len(indices) :]
        first, last = (len(wrong) * (share.part + i) // share.parts for i in (0, 1))
        images = self.prepared(self.pictures(indices[own]), indices[own], epochs[own])
        return self.captions.batch(texts[: len(indices)][own] + wrong[first:last], self.context), images

    def texts(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> list[str]:
        """The captions of all, then the wrong ones of those that bring one."""
        draws = self._draws(_PHRASES, indices, epochs) if self.change is not None else np.zeros_like(indices)
        texts = [self.source.caption(int(i), int(draw)) for i, draw in zip(indices, draws, strict=True)]
        if self.wrong is not None:
            shares: tuple[tuple[Kind, float], ...] = (("medium", self.wrong.medium), ("hard", self.wrong.hard))
            rise = float(self.wrong.rise(epochs).mean())
            for stream, (kind, share) in enumerate(shares, _WRONG):
                # The same number in every batch: hundreds of shapes leave a kept heap full of holes. clip-small, which
                # began with 1.0 GB, held 2.7 GB after 2,000 steps.
                count = round(share * rise * len(indices))
                ranks = _random.bits(self.seed, stream, epochs, indices)
                chosen = np.sort(np.argsort(ranks, kind="stable")[:count])
                others = self._draws(stream + len(shares), indices[chosen], epochs[chosen])
                for i, draw in zip(indices[chosen], others, strict=True):
                    texts.append(self.source.wrong_caption(int(i), kind, int(draw)))
        return texts

    def wrong_texts(self, indices: NDArray[np.int64], kind: Kind) -> list[str]:
        """One for each, always the same: for evaluations."""
        return [self.source.wrong_caption(int(i), kind) for i in indices]

    def pictures(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
        """(B, size, size, 3), as they are in the set."""
        if self.remembers and self._known is None:
            self._known = _Known.of(len(self.source), self.source.picture(int(indices[0])))
            self.remembers = self._known is not None
        if self._known is not None:
            return self._known.take(indices, self.source)
        return np.stack([self.source.picture(int(i)) for i in indices])

    def prepared(self, pictures: NDArray[np.uint8], indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """What the model is given for these samples."""
        if self.change is None:
            return self.scaling(pictures)
        draws = 2 * _random.uniform(self.seed, _LIGHT, 4, epochs, indices) - 1  # (B, 4)
        most = self.change.shift * pictures.shape[1]
        shifts = np.rint(draws[:, :2] * most).astype(np.int64)
        moved = np.empty_like(pictures)
        for picture, (down, right), out in zip(pictures, shifts.tolist(), moved, strict=True):
            _move(picture, down, right, out)
        gain = 1 + self.change.contrast * draws[:, 2]
        return self.scaling(moved, gain, self.change.brightness * draws[:, 3])

    def seconds(self, count: int = 32) -> tuple[float, float]:
        """(to load, to preprocess) a pair, measured on the first ones, which are not remembered yet."""
        indices = np.arange(min(count, len(self)), dtype=np.int64)
        self.prepared(self.pictures(indices[:1]), indices[:1], indices[:1])  # the first call of anything takes longer
        began = time.perf_counter()
        pictures = np.stack([self.source.picture(int(i)) for i in indices])
        loaded = time.perf_counter()
        self.captions.batch(self.texts(indices, np.zeros_like(indices)), self.context)
        self.prepared(pictures, indices, np.zeros_like(indices))
        return (loaded - began) / len(indices), (time.perf_counter() - loaded) / len(indices)

    def _draws(self, stream: int, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        return (_random.bits(self.seed, stream, epochs, indices) % np.uint64(_DRAWS)).astype(np.int64)


def _move(picture: NDArray[np.uint8], down: int, right: int, out: NDArray[np.uint8]) -> None:
    """What comes in is the edge, again and again."""
    size = len(picture)
    here_y, from_y = slice(max(down, 0), size + min(down, 0)), slice(max(-down, 0), size - max(down, 0))
    here_x, from_x = slice(max(right, 0), size + min(right, 0)), slice(max(-right, 0), size - max(right, 0))
    out[here_y, here_x] = picture[from_y, from_x]
    out[here_y, : here_x.start] = out[here_y, here_x.start, None]
    out[here_y, here_x.stop :] = out[here_y, here_x.stop - 1, None]
    out[: here_y.start] = out[here_y.start]
    out[here_y.stop :] = out[here_y.stop - 1]


class _Known:
    """Pictures that were made already. Memory of those that were not is promised, not taken."""

    def __init__(self, num: int, shape: tuple[int, ...]) -> None:
        self.pictures: NDArray[np.uint8] = np.zeros((num, *shape), np.uint8)
        self.is_there = np.zeros(num, bool)

    @classmethod
    def of(cls, num: int, example: NDArray[Any]) -> "_Known | None":
        return cls(num, example.shape) if num * example.nbytes <= _MOST_REMEMBERED else None

    def take(self, indices: Sequence[int] | NDArray[np.int64], source: Source) -> NDArray[np.uint8]:
        for i in indices:
            if not self.is_there[i]:
                self.pictures[i] = source.picture(int(i))
                self.is_there[i] = True
        return self.pictures[indices]

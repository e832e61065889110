"""Samples of a language model, cut from a stream of tokens without padding.

    tokens  s[p], ..., s[p + T - 1]        targets  s[p + 1], ..., s[p + T]        T tokens of context

To train, the stream of n tokens is a ring, cut every T tokens from an offset that is a function of (seed, epoch):
sample i begins at p = offset + i T, and an epoch is n // T samples. To validate, it is cut from its start, and every
token but the first is a target once: the last sample is moved back to be whole, and its targets that were counted
before are IGNORED.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import _random, token_files
from .token_files import Span

IGNORED = -100  # as torch's cross-entropy has it
_OFFSETS = 5  # stream of the seed


@dataclass(frozen=True)
class TokenDataset:
    """Batches of (tokens, targets), int64 (N, context)."""

    files: Sequence[Span]  # the stream is one after the other
    context: int
    vocabulary: int
    seed: int = 0
    shift: bool = True  # for training; False: for validation
    _maps: list[NDArray[np.uint16]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.context < 1:
            raise ValueError(f"context: expected a number from 1 on, got {self.context}")
        if not self.files:
            raise ValueError("files: expected one at least, got none")
        if self.num_tokens <= self.context:
            use = "training" if self.shift else "validation"
            raise ValueError(
                f"{self.files[0].path}: has {self.num_tokens:,} tokens for {use}, expected {self.context + 1:,} "
                f"or more for a context of {self.context:,}: give more text or a shorter context"
            )

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.files))

    def __len__(self) -> int:
        if self.shift:
            return self.num_tokens // self.context
        return -(-(self.num_tokens - 1) // self.context)

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        cut = np.empty((len(indices), self.context + 1), np.int64)
        starts = self._starts(indices, epochs)
        for row, start in zip(cut, starts.tolist(), strict=True):
            self._read(start, row)
        if cut.max() >= self.vocabulary:
            self._refuse(starts, cut)
        tokens, targets = torch.from_numpy(cut[:, :-1].copy()), torch.from_numpy(cut[:, 1:].copy())
        if not self.shift:
            for target, counted in zip(targets, (indices * self.context - starts).tolist(), strict=True):
                target[:counted] = IGNORED
        return tokens, targets

    def _starts(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        starts = indices * self.context
        if not self.shift:
            return np.minimum(starts, self.num_tokens - 1 - self.context)
        offsets = (_random.bits(self.seed, _OFFSETS, epochs) % np.uint64(self.num_tokens)).astype(np.int64)
        return (starts + offsets) % self.num_tokens

    def _read(self, start: int, out: NDArray[np.int64]) -> None:
        """The tokens from `start` on; after the last comes the first."""
        if not self._maps:  # not before it is needed: a worker has its own
            self._maps.extend(span.map() for span in self.files)
        filled = 0
        while filled < len(out):
            for tokens in self._maps:
                part = tokens[start : start + len(out) - filled]
                out[filled : filled + len(part)] = part
                filled += len(part)
                start = max(0, start - len(tokens))

    def _refuse(self, starts: NDArray[np.int64], cut: NDArray[np.int64]) -> None:
        row, column = (int(place) for place in np.argwhere(cut >= self.vocabulary)[0])
        place = int(starts[row] + column) % self.num_tokens
        for span in self.files:
            if place < len(span):
                raise ValueError(token_files.beyond(span, place, int(cut[row, column]), self.vocabulary))
            place -= len(span)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": []}  # the files are sent by name, not by content

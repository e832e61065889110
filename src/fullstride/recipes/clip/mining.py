"""Wrong captions out of the model's own mistakes.

After each evaluation a pool of training pairs is looked through: of each picture the caption of another pair that the
model finds at least as fitting as its own. Those captions join the batches of the pictures from then on. What was found
is saved with every checkpoint, as the loader's state: a resumed run goes on with the same captions.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data import _random
from ...data.loader import Batches
from ...data.order import permutation, seed_of
from ...data.pictures.pairs import Wrong
from ...data.pictures.source import Source
from ...data.sharing import SharedOrder
from ...models import clip

if TYPE_CHECKING:
    from .task import ClipTask

_STREAM = 29  # of the seed
_BATCH = 50  # pairs that are encoded at a time
_LOOKED_AT = 5  # captions of each picture, the best ones: some may be right


@torch.no_grad()
def mine(task: "ClipTask", model: nn.Module, step: int, between: Callable[[], None]) -> dict[int, int]:
    """{pair: the pair whose caption was taken for its own}, of the pool that belongs to this step."""
    data = task.train_data
    order = permutation(len(data), seed_of(task.config.seed, ~step), 0)
    pool = np.sort(order[: task.config.negatives.pool])
    was_training = model.training
    model.eval()
    try:
        images, texts = [], []
        for start in range(0, len(pool), _BATCH):
            indices = pool[start : start + _BATCH]
            pictures = data.pictures(indices)
            words = [data.source.caption(int(i)) for i in indices]
            texts.append(clip.encode_texts(model, task.captions.batch(words, data.context)))
            images.append(clip.encode_images(model, data.scaling(pictures)))
            between()
    finally:
        model.train(was_training)
    return mistakes(torch.cat(images), torch.cat(texts), pool.tolist(), data.source)


def mistakes(images: Tensor, texts: Tensor, pool: list[int], source: Source) -> dict[int, int]:
    """The same words elsewhere, or another caption of the same picture, are no mistake."""
    scores, found = images @ texts.t(), {}
    best = scores.topk(min(_LOOKED_AT, len(pool)), dim=1)
    for i, (index, own) in enumerate(zip(pool, scores.diagonal().tolist(), strict=True)):
        for value, place in zip(best.values[i].tolist(), best.indices[i].tolist(), strict=True):
            if value >= own and not source.is_own(index, source.caption(pool[place])):
                found[index] = pool[place]
                break
    return found


def from_document(saved: dict[str, Any] | None) -> dict[int, int]:
    pairs = (saved or {}).get("mined", [])
    return {int(a): int(b) for a, b in pairs}


class MinedBatches:
    """Batches of another loader, with mined captions behind the others."""

    def __init__(self, batches: Batches, task: "ClipTask") -> None:
        self._batches, self._task = batches, task
        self._order, self._share = SharedOrder(task.order(task.config), task.share), task.share
        self.position = batches.position

    def next(self) -> tuple[Tensor, ...]:
        task, number = self._task, self.position
        tokens, images = self._batches.next()
        self.position = self._batches.position
        indices, epochs = self._order.micro_batch(number)
        own = self._share.cut(len(indices))
        indices, epochs = indices[own], epochs[own]
        draws = _random.uniform(task.config.seed, _STREAM, 1, epochs, indices)[:, 0]
        shares = task.config.negatives.mined * (task.train_data.wrong or Wrong()).rise(epochs)
        chosen = indices[draws < shares].tolist()
        others = [task.mined[i] for i in chosen if i in task.mined]
        if not others:
            return tokens, images
        texts = [task.train_data.source.caption(i) for i in others]
        more = task.captions.batch(texts, task.train_data.context)
        return _stacked(tokens, more, task.captions.end), images

    def observe(self, waited: float, computed: float) -> None:
        self._batches.observe(waited, computed)

    def state(self) -> dict[str, Any]:
        return {"mined": sorted(self._task.mined.items())}

    @property
    def choice(self) -> str:
        return self._batches.choice

    def close(self) -> None:
        self._batches.close()


def _stacked(tokens: Tensor, more: Tensor, end: int) -> Tensor:
    """Both padded to the longer of the two."""
    length = max(tokens.shape[1], more.shape[1])
    return torch.cat([nn.functional.pad(part, (0, length - part.shape[1]), value=end) for part in (tokens, more)])

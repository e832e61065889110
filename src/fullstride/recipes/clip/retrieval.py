"""How well pictures and captions find each other, on held-out data.

    recall_k          share of pictures whose caption is among the k that fit best, of as many as evaluation.batch says
    image_recall_k    the same from a caption to its picture
    easy_accuracy     share of pictures whose caption fits better than a wrong one of this kind (source.py); so medium
                      and hard
    zero-shot         share of pictures that are given the right class by captions such as "a picture of a red circle"

Candidates with the very words of the right caption count as right.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.pictures.source import KINDS, Classes
from ...models import clip

if TYPE_CHECKING:
    from ...report.section import Section
    from .task import ClipTask

_RANKS = (1, 5, 10)
_AT_A_TIME = 50  # pictures
_SHOWN = 12  # of right and of wrong ones, in the report


def scale_of(model: nn.Module) -> float:
    """Of the logits, 1 / temperature."""
    found: Any = model.scale
    return float(found.detach())


def score(model: nn.Module, tokens: Tensor, images: Tensor, first: int = 0) -> dict[str, float]:
    """Sums over the pictures from `first` on; all are candidates.

    tokens: of their captions, then of a wrong one each of every kind.
    """
    image, text = encode(clip.encode_images, model, images), encode(clip.encode_texts, model, tokens)
    own, *wrong = text.split(len(images))
    similar = image @ own.t()
    logits, targets = scale_of(model) * similar, torch.arange(len(images))
    losses = [F.cross_entropy(each, targets, reduction="none")[first:].sum() for each in (logits, logits.t())]
    sums = {"count": float(len(images) - first), "loss": sum(loss.item() for loss in losses) / 2}
    same = _same(tokens[: len(images)])
    for name, scores in (("recall", similar), ("image_recall", similar.t())):
        ranks = _ranks(scores, same)[first:]
        sums |= {f"{name}_{k}": float((ranks < k).sum()) for k in _RANKS}
    right = similar.diagonal()
    for kind, other in zip(KINDS, wrong, strict=False):
        sums[f"{kind}_accuracy"] = float((right > (image * other).sum(1))[first:].sum())
    return sums


def encode(how: Callable[[nn.Module, Tensor], Tensor], model: nn.Module, inputs: Tensor) -> Tensor:
    """Some at a time: an evaluation should not need more memory than training does."""
    return torch.cat([how(model, part) for part in inputs.split(_AT_A_TIME)])


def _same(tokens: Tensor) -> Tensor:
    """(B, B): which captions have the same words."""
    kinds = torch.unique(tokens, dim=0, return_inverse=True)[1]
    return kinds[:, None] == kinds[None, :]


def _ranks(scores: Tensor, same: Tensor) -> Tensor:
    """How many candidates fit as well as the right one or better, those like it left out.

    One that fits equally well counts, and so does NaN: a model that says the same of everything finds nothing.
    """
    return (~(scores < scores.diagonal()[:, None]) & ~same).sum(1)


# ---- tables --------------------------------------------------------------------------------------------------------


def figures(task: "ClipTask", model: nn.Module) -> dict[str, float]:
    """Means over all held-out pairs."""
    sums: Counter[str] = Counter()
    for tokens, images, first in task.valid_batches(task.config.evaluation.batch):
        sums.update(score(model, tokens, images, int(first)))
    count = sums.pop("count")
    return {name: total / count for name, total in sums.items()}


def table(task: "ClipTask", model: nn.Module) -> list[dict[str, Any]]:
    """One row a figure: what the model reaches, and what guessing would."""
    found, candidates = figures(task, model), min(task.config.evaluation.batch, len(task.valid_data))
    rows = []
    for name, way in (("recall", "caption of a picture"), ("image_recall", "picture of a caption")):
        for k in _RANKS:
            of = f"{way}, best {k} of {candidates}" if k > 1 else f"{way}, best of {candidates}"
            rows.append({"what": of, "share": found[f"{name}_{k}"], "chance": min(1.0, k / candidates)})
    for kind in KINDS:
        against = f"against {'an' if kind == 'easy' else 'a'} {kind} wrong caption"
        rows.append({"what": against, "share": found[f"{kind}_accuracy"], "chance": 0.5})
    for classes in task.valid_data.source.classes():
        what = f"zero-shot: {classes.name} ({len(classes.prompts)})"
        rows.append({"what": what, "share": zero_shot(task, model, classes), "chance": 1 / len(classes.prompts)})
    return rows


def zero_shot(task: "ClipTask", model: nn.Module, classes: Classes) -> float:
    prompts = clip.encode_texts(model, task.captions.batch(classes.prompts, task.train_data.context))
    right = 0
    for start in range(0, len(classes.labels), _AT_A_TIME):
        labels = torch.tensor(classes.labels[start : start + _AT_A_TIME])
        pictures = np.stack([classes.picture(start + i) for i in range(len(labels))])
        images = clip.encode_images(model, task.valid_data.scaling(pictures))
        right += int(((images @ prompts.t()).argmax(1) == labels).sum())
    return right / len(classes.labels)


# ---- the report ------------------------------------------------------------------------------------------------------


def sections(task: "ClipTask", model: nn.Module, run: Path) -> list["Section"]:
    from ...report import retrieval
    from ...report.run import read

    was_training = model.training
    model.eval()
    try:
        rows = table(task, model)
        examples = _examples(task, model)
    finally:
        model.train(was_training)
    so_far = read(run)
    loading = retrieval.loading(so_far, *task.train_data.seconds())
    return [retrieval.quality(rows, so_far), retrieval.examples(examples), loading]


def _examples(task: "ClipTask", model: nn.Module) -> list[Any]:
    """Held-out pictures with the caption that fits best among those of the first batch."""
    from ...report.retrieval import Example

    data = task.valid_data
    indices = np.arange(min(task.config.evaluation.batch, len(data)), dtype=np.int64)
    words, pictures = data.texts(indices, np.zeros_like(indices)), data.pictures(indices)
    images = encode(clip.encode_images, model, data.scaling(pictures))
    texts = encode(clip.encode_texts, model, task.captions.batch(words, data.context))
    scores = images @ texts.t()
    found = []
    for i, row in enumerate(scores):
        place = int(row.argmax())
        found.append(Example(pictures[i], words[i], words[place], float(row[place]), words[i] == words[place]))
    right, wrong = ([e for e in found if e.is_right is answer] for answer in (True, False))
    return [*wrong[:_SHOWN], *right[:_SHOWN]]

"""What recipe `clip` trains: which caption belongs to which picture."""

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data import sources
from ...data.loader import Batches
from ...data.pictures.pairs import Change, Pairs, Wrong
from ...data.pictures.scenes import Scenes
from ...data.pictures.source import KINDS, Kind, Source
from ...models import clip
from ...tokens import captions
from ...tokens.captions import Captions
from ..task import Stock, Task
from . import MADE_OF_TEXT, mining, retrieval

if TYPE_CHECKING:
    from ...distributed.peers import Peers
    from ...report.section import Section
    from ..config import Config
    from . import ClipConfig

logger = logging.getLogger(__name__)

_EXAMPLE = 8  # pairs or more, for the FLOPs of one
_READ = 20_000  # captions that a tokenizer is made of, at most


class ClipTask(Task):
    unit = "pairs"
    metrics = ("loss", "recall_1", "image_recall_1", "hard_accuracy")
    higher_is_better = frozenset({"recall_1", "image_recall_1", "hard_accuracy"})
    shows_alone = False
    micro_batch_matters = "the captions of a micro-batch are each other's wrong ones"

    def __init__(self, config: "ClipConfig") -> None:
        self.config, self.shape = config, config.model.shape()
        self._skipped: list[str] = []  # of the data
        train, valid = self._sources()
        self.fingerprint = train.fingerprint
        self.captions = self._captions(train)
        wish = config.negatives
        common: dict[str, Any] = {
            "context": self.shape["context"], "seed": config.seed, "scaling": config.data.scaling(),
        }  # fmt: skip
        self.train_data: Pairs = Pairs(
            train, self.captions, **common, remembers=config.data.name == "scenes",
            change=Change() if config.data.augment else None,
            wrong=Wrong(wish.medium, wish.hard, wish.start, wish.full),
        )  # fmt: skip
        self.valid_data: Pairs = Pairs(valid, self.captions, **common)
        self._check_data()
        self.mined: dict[int, int] = {}  # a training pair, and the one whose caption the model took for its own

    # ---- the data ----------------------------------------------------------------------------------------------------

    def _sources(self) -> tuple[Source, Source]:
        data, size, seed = self.config.data, self.shape["image"], self.config.seed
        if data.name == "scenes":
            train = Scenes(data.num_train, size, seed)
            return train, Scenes(data.num_valid, size, seed, first=data.num_train)
        from ...data.pictures import collection

        if data.name == "emoji":
            folder = sources.default_folder("emoji") if data.path is None else Path(data.path)
            found = collection.load_emoji(folder, size, data.held_out, seed, data.num_valid)
        else:
            assert data.path is not None
            found = collection.load(Path(data.path), size, data.valid_share, seed)
        self._skipped = found[2].lines()
        return found[:2]

    def _captions(self, source: Source) -> Captions:
        data = self.config.data
        if data.tokenizer not in MADE_OF_TEXT:
            return captions.load_from(Path(data.tokenizer))
        indices = np.linspace(0, len(source) - 1, min(len(source), _READ)).astype(int)
        draws = (0, 1) if data.augment else (0,)
        return captions.train(
            (source.caption(int(i), draw) for i in indices for draw in draws),
            "characters" if data.tokenizer == "characters" else "bpe", data.vocabulary,
        )  # fmt: skip

    def _check_data(self) -> None:
        """Where all captions are the same there are none, which an evaluation or a later epoch would find out.

        And a pair that is in a batch twice would be its own wrong one.
        """
        if self.config.micro_batch > len(self.train_data):
            count = len(self.train_data)
            expected = f"expected at most the {count:,} pairs there are to train on"
            raise ValueError(f"micro_batch: {expected}, got {self.config.micro_batch}")
        wish, first = self.config.negatives, np.zeros(1, np.int64)
        self.valid_data.wrong_texts(first, "easy")
        if wish.medium or wish.hard:
            self.train_data.wrong_texts(first, "easy")

    def train_batches(self, config: "Config", position: int, saved: dict[str, Any] | None) -> Batches:
        """With mined captions, if they are asked for."""
        batches = super().train_batches(config, position, saved)
        if not self.config.negatives.mined:
            return batches
        self.mined = mining.from_document(saved)
        return mining.MinedBatches(batches, self)

    def valid_batches(self, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens (4 B, T), with a wrong caption of every kind for every picture; images; how many were scored before.

        These come first and fill the last batch, so that everybody has as many to be told apart from.
        """
        data = self.valid_data
        size = min(batch, len(data))
        for start in range(self.share.rank * size, len(data), self.share.world * size):
            first = min(start, len(data) - size)
            indices = np.arange(first, first + size, dtype=np.int64)
            texts = data.texts(indices, np.zeros_like(indices))
            for kind in KINDS:
                texts += data.wrong_texts(indices, kind)
            images = data.prepared(data.pictures(indices), indices, np.zeros_like(indices))
            yield self.captions.batch(texts, data.context), images, torch.tensor(start - first)

    def example_batch(self) -> tuple[Any, int]:
        """With all the wrong captions there will be, and in chunks if batches are: these are computed twice."""
        size = min(self.config.micro_batch, max(_EXAMPLE, 2 * (self.config.model.chunk or 1)))
        return self.largest_batch(size), size

    def largest_batch(self, size: int) -> tuple[Tensor, ...]:
        """With wrong captions of every kind, as many as there will be."""
        wish, data = self.config.negatives, self.train_data
        indices = np.arange(size) % len(data)
        texts = [data.source.caption(int(i)) for i in indices]
        shares: dict[Kind, float] = {"medium": wish.medium, "hard": wish.hard, "easy": wish.mined}
        for kind, share in shares.items():
            texts += data.wrong_texts(indices[: math.ceil(share * size)], kind)
        images = data.prepared(data.pictures(indices), indices, np.zeros_like(indices))
        return self.captions.batch(texts, data.context), images

    def describe(self) -> str:
        """When a run has its log: what was left out of the data is told there, once."""
        for line in self._skipped if self.share.rank == 0 else []:
            logger.warning("%s", line)
        load, preprocess = self.train_data.seconds()
        return (
            f"{len(self.train_data):,} pairs to train on, {len(self.valid_data):,} held out,"
            f" {self.captions.vocabulary:,} tokens; a pair takes {1e3 * load:.2f} ms to load and"
            f" {1e3 * preprocess:.2f} ms to preprocess"
        )

    # ---- the model ---------------------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        return clip.build(**self.stock().arguments)

    def stock(self) -> Stock:
        return Stock("clip", {"vocabulary": self.captions.vocabulary, "end": self.captions.end, **self.shape})

    def load_weights(self, model: nn.Module) -> None:
        if self.config.init is not None:
            from . import files

            files.load_into(model, Path(self.config.init))

    def write_files(self, folder: Path) -> None:
        self.captions.save(folder)

    def join(self, model: nn.Module, peers: "Peers") -> None:
        """The loss is that of the pictures and captions of all, which are each other's wrong ones."""
        super().join(model, peers)
        assert isinstance(model.loss, nn.Module)
        model.loss.register_forward_pre_hook(peers.gather_pairs)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return clip.loss(model, batch)

    def watch(self, model: nn.Module) -> dict[str, float]:
        return {"temperature": 1 / retrieval.scale_of(model)}

    def score(self, model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, float]:
        """Among the captions and pictures of the batch: as many candidates as evaluation.batch says."""
        tokens, images, first = batch
        found = retrieval.score(model, tokens, images, int(first))
        return {name: found[name] for name in (*self.metrics, "count")}

    # ---- what it has learnt ------------------------------------------------------------------------------------------

    def show(self, model: nn.Module, folder: Path, step: int, between: Callable[[], None]) -> list[dict[str, Any]]:
        """Looks for captions that the model mistakes for others, if training is to use them."""
        if not self.config.negatives.mined:
            return []
        self.mined = mining.mine(self, model, step, between)
        return [{"event": "mined", "captions": len(self.mined)}]

    def assess(self, model: nn.Module, run: Path) -> list[dict[str, Any]]:
        """The table of retrieval.py."""
        with torch.no_grad():
            return retrieval.table(self, model)

    def sections(self, model: nn.Module, run: Path) -> list["Section"]:
        with torch.no_grad():
            return retrieval.sections(self, model, run)

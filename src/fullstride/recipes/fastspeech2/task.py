"""What recipe `fastspeech2` trains: mel frames, durations, pitch and energy of spoken sentences."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import speaking
from ...data import sources
from ...data.length_order import LengthOrder
from ...data.speech import corpus
from ...data.speech.dataset import FRAMES, SpeechDataset
from ...models import fastspeech2
from ...sound.mel import HOP, RATE
from ..task import Stock, Task
from . import listening

if TYPE_CHECKING:
    from ...report.section import Section
    from ..config import Config
    from . import FastSpeech2Config

_LEAST_PHONEMES = 3  # for a correlation of pitch


class FastSpeech2Task(Task):
    unit = "frames"
    metrics = ("loss", "mel_l1", "duration_ms", "pitch_correlation")
    higher_is_better = frozenset({"pitch_correlation"})
    micro_batch_matters = "sentences of like length share a micro-batch, and each of its frames counts alike"

    def __init__(self, config: "FastSpeech2Config") -> None:
        self.config = config
        path = sources.default_folder("speech") if config.data.path is None else Path(config.data.path)
        self.corpus = corpus.load(path)
        self.fingerprint = self.corpus.fingerprint
        self.train_data: SpeechDataset = SpeechDataset(self.corpus)
        self.valid_data: SpeechDataset = SpeechDataset(self.corpus, held_out=True)
        self.units_per_sample = round(float(self.train_data.lengths.mean()))  # on average

    # ---- the data ----------------------------------------------------------------------------------------------------

    def order(self, config: "Config") -> LengthOrder:
        return LengthOrder(self.train_data.lengths, config.micro_batch, config.seed, multiple=FRAMES)

    def micro_batches_of_epoch(self, config: "Config") -> Fraction:
        return Fraction(self.order(config).batches_of_epoch)

    def num_samples(self, batch: Any, config: "Config") -> int:
        return len(batch[0])

    def example_batch(self) -> tuple[Any, int]:
        """Of the middle of an epoch: sentences as long as most are."""
        order = LengthOrder(self.train_data.lengths, 8, self.config.seed)
        middle = sorted(order.epoch(0), key=lambda batch: int(self.train_data.lengths[batch].sum()))
        indices = middle[len(middle) // 2]
        return self.train_data.batch(indices, indices * 0), len(indices)

    def largest_batch(self, size: int) -> tuple[Tensor, ...]:
        """The longest sentences, which come together."""
        indices = np.argsort(-self.train_data.lengths, kind="stable")[np.arange(size) % len(self.train_data)]
        return self.train_data.batch(indices, indices * 0)

    def describe(self) -> str:
        padding = self.order(self.config).padding()
        return (
            f"{self.corpus.seconds / 3600:.2f} hours of speech, {len(self.train_data):,} sentences by"
            f" {', '.join(self.corpus.speakers)}; {100 * padding:.1f} % of the frames in a batch are padding"
        )

    # ---- the model ---------------------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        return fastspeech2.build(**self.stock().arguments)

    def stock(self) -> Stock:
        sizes = {"phonemes": len(self.corpus.symbols) + 1, "speakers": len(self.corpus.speakers)}
        return Stock("fastspeech2", {**sizes, **self.config.model.shape()})

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Each frame of the whole micro-batch counts alike, in whatever part of it."""
        if self.peers is None:
            return fastspeech2.loss(model, batch)
        counts = self.peers.sum(fastspeech2.counts_of(batch)) / self.share.parts
        return fastspeech2.loss(model, batch, counts)

    def score(self, model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, float]:
        """With the true durations, pitch and energy; sums over sentences.

        Pitch is the contour that the model is told: a line between voiced phonemes where there is no voice.
        """
        found = fastspeech2.predict(model, batch)
        parts, count = fastspeech2.losses(found, batch), len(batch[0])
        is_phoneme, true = batch[0] != fastspeech2.PADDING, batch[2]
        off = (fastspeech2.frames_of(found.log_durations) - true).abs() * is_phoneme
        off_by = (off.sum(1) / is_phoneme.sum(1).clamp(min=1)).sum().item()
        return {
            "loss": torch.stack(list(parts.values())).sum().item() * count,
            "mel_l1": parts.get("refined", parts["mel"]).item() * count,
            "duration_ms": 1000 * HOP / RATE * off_by,
            "pitch_correlation": _correlation(found.pitch.float(), batch[3], is_phoneme) * count,
            "count": count,
        }

    # ---- what it sounds like -----------------------------------------------------------------------------------------

    def write_files(self, folder: Path) -> None:
        speaking.save(folder, listening.front_end(self.corpus), listening.speakers(self.corpus))

    def show(self, model: nn.Module, folder: Path, step: int, between: Callable[[], None]) -> list[dict[str, Any]]:
        """A WAV file, and how much of the model's speech a recogniser understands."""
        return listening.listen(self, model, folder, step, between)

    def assess(self, model: nn.Module, run: Path) -> list[dict[str, Any]]:
        """The table of quality.py, with word error rates if the recogniser is here."""
        from . import quality

        return quality.assess(self, model, run)

    def sections(self, model: nn.Module, run: Path) -> list["Section"]:
        from . import quality

        return quality.sections(self, model, run)


def _correlation(found: Tensor, true: Tensor, is_real: Tensor) -> float:
    """Pearson's, sentence by sentence, the mean."""
    values = []
    for a, b, real in zip(found, true, is_real, strict=True):
        if int(real.sum()) >= _LEAST_PHONEMES:
            both = torch.stack((a[real], b[real]))
            value = torch.corrcoef(both)[0, 1].item() if bool((both.std(1) > 0).all()) else 0.0
            values.append(value)
    return sum(values) / len(values) if values else 0.0

"""A voice as one .onnx file, for programs without PyTorch: `fullstride export RUN --to voice.onnx`.

    phonemes (1, P) and speaker (1,), int64; speed, raise_pitch, raise_energy, fp32 -> mel (1, T, 80), durations (1, P)

One sentence of any length from 2 phonemes on. Symbols, speakers and the convention of the mels are in its metadata.
The values are those of models/fastspeech2.py to rounding; where a duration lies between two numbers of frames to the
last bit, a phoneme may get one frame more or less.
"""

import contextlib
import json
import logging
import math
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import durable
from ...exchange import placing
from ...models import fastspeech2
from ...models.fastspeech2 import FastSpeech2
from ...sound import mel
from ...speaking import FRONT_END, SPEAKERS

INPUTS = ("phonemes", "speaker", "speed", "raise_pitch", "raise_energy")
OUTPUTS = ("mel", "durations")


class Sentence(nn.Module):
    """The model for one sentence, in operations that ONNX has. How many frames there are is one of the values."""

    def __init__(self, model: FastSpeech2) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, phonemes: Tensor, speaker: Tensor, speed: Any, raise_pitch: Tensor, raise_energy: Tensor
    ) -> tuple[Tensor, Tensor]:
        net = self.model
        is_phoneme = torch.ones_like(phonemes, dtype=torch.bool)
        x = net.embedding(phonemes) * math.sqrt(net.width)
        x = net.encoder(x, net.positions(phonemes.shape[1]), is_phoneme)
        if net.speakers is not None:
            x = x + net.speakers(speaker)[:, None, :]
        durations = fastspeech2.frames_of(net.duration_predictor(x, is_phoneme), speed)
        pitch = net.pitch_predictor(x, is_phoneme) + raise_pitch
        energy = net.energy_predictor(x, is_phoneme) + raise_energy
        x = x + net.pitch_embedding(self._bins(pitch)) + net.energy_embedding(self._bins(energy))
        x, is_frame = self._repeated(x[0], durations[0].cumsum(0))
        found = net.projection(net.decoder(x, net.positions(x.shape[1]), is_frame))
        return found if net.postnet is None else net.postnet(found, is_frame), durations

    def _bins(self, values: Tensor) -> Tensor:
        """bucketize(), which ONNX has not."""
        return (self.model.edges < values[:, :, None]).sum(2)

    def _repeated(self, x: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """repeat() of the model, without searchsorted(), which ONNX has not: x (P, D), ends (P,) -> (1, T, D)."""
        length: Any = ends[-1].clamp(min=2).item()  # of one frame, torch.export would make a case of its own
        torch._check(length >= 2)
        frames = torch.arange(length)
        rows = (ends[None, :] <= frames[:, None]).sum(1).clamp(max=x.shape[0] - 1)
        return x[rows][None], (frames < ends[-1])[None]


def missing() -> str | None:
    """What to install, if no .onnx file can be written here."""
    absent = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if not absent:
        return None
    return (
        f"a .onnx file is written by onnx and onnxscript, and {' and '.join(absent)} cannot be found: pip install"
        " 'fullstride[onnx]', or export a folder (a name without an ending), which needs PyTorch alone"
    )


def write(tensors: dict[str, Tensor], arguments: dict[str, Any], run: Path, target: Path, replace: bool) -> list[Path]:
    """Whole or not at all."""
    line = missing()
    if line is not None:
        raise ValueError(line)
    placing.refuse_existing(target, replace)
    model = fastspeech2.build(**arguments)
    model.load_state_dict(tensors)
    program = _translated(Sentence(model).eval())
    program.model.metadata_props.update(_facts(run))
    with placing.aside(target) as folder:
        durable.write(folder / "voice.onnx", [program.model_proto.SerializeToString()])
        placing.place({folder / "voice.onnx": target}, replace)
    return [target]


def _translated(sentence: Sentence) -> Any:
    """Traced with a sentence of 7 phonemes, whose number stays open."""
    zero = torch.tensor(0.0)
    example = (torch.ones(1, 7, dtype=torch.int64), torch.tensor([0]), torch.tensor(1.0), zero, zero.clone())
    count = torch.export.Dim("P", min=2, max=100_000)
    with _quietly(), torch.no_grad():
        return torch.onnx.export(
            sentence, example, dynamo=True, verbose=False, input_names=INPUTS, output_names=OUTPUTS,
            dynamic_shapes=({1: count}, {}, {}, {}, {}),
        )  # fmt: skip


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """It warns of packages that are not needed here, and of what PyTorch itself does."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _facts(run: Path) -> dict[str, str]:
    symbols = json.loads((run / FRONT_END).read_bytes())["symbols"]
    return {
        "symbols": json.dumps(symbols), "speakers": (run / SPEAKERS).read_text(encoding="utf-8"),
        "mel": mel.CONVENTION, "rate": str(mel.RATE), "hop": str(mel.HOP),
    }  # fmt: skip

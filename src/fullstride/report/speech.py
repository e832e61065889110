"""Sections for a model that speaks: what it should have said and what it says, how good that is, and how it sounds.

    spectrograms(pairs)              mels side by side; pitch, energy and duration of every phoneme
    quality(rows, over_steps)        errors of the model beside those of the best and the simplest that there is
    recordings_section(run, folder)  a sound for each evaluation: an event row "speech" and its file in samples/

Arrays of numpy. Sounds are WAV files and become part of the page.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .run import Row, Run, number
from .section import Figure, Recording, Section, Table
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

Array = NDArray[Any]
Draw = Callable[["matplotlib.figure.Figure"], None]
EVENT = "speech"
FRAME_SECONDS = 256 / 22050  # one hop of the mels
_MOST_SENTENCES = 3
_PHONEMES_IN_A_ROW = 20  # so that names of three letters do not touch each other
_MOST_ROWS = 5
_NAMES = 7.0  # points, of the phonemes' names
_MOST_RECORDINGS = 8
_MOST_BYTES = 6_000_000  # of all recordings together, as they stand in the page
# Rows come from a file that anybody may have edited: they shall not bring other files into a page that is sent around.
_FILE = re.compile(r"samples/step-\d{6,}\.wav")
_COLUMNS = ("", "mel L1", "MCD, dB", "duration, ms", "pitch r", "WER")  # short: half a page wide


@dataclass(frozen=True)
class MelPair:
    """A held-out sentence, P phonemes long. The predicted mel has the predicted durations."""

    text: str
    phonemes: Sequence[str]
    predicted: Array  # (frames, bins), natural logarithms
    true: Array
    predicted_pitch: Array  # (P,) Hz; 0 where there is no voice
    true_pitch: Array
    predicted_energy: Array  # (P,)
    true_energy: Array
    predicted_durations: Array  # (P,) frames
    true_durations: Array
    frame_seconds: float = FRAME_SECONDS

    def __post_init__(self) -> None:
        for name in ("pitch", "energy", "durations"):
            for side in ("predicted", "true"):
                shape = np.shape(getattr(self, f"{side}_{name}"))
                if shape != (len(self.phonemes),):
                    expected = f"expected one value for each of {len(self.phonemes)} phonemes"
                    raise ValueError(f"{side}_{name} of {_quote(self.text)}: {expected}, got the shape {shape}")
        predicted, true = np.shape(self.predicted), np.shape(self.true)
        if len(predicted) != 2 or len(true) != 2 or predicted[1] != true[1]:
            expected = "expected (frames, bins) with as many bins"
            raise ValueError(f"mels of {_quote(self.text)}: {expected}, got the shapes {predicted} and {true}")


@dataclass(frozen=True)
class Quality:
    """One row of the table. None where a figure has no meaning: nobody predicts the durations of a recording."""

    who: str
    mel_l1: float | None = None
    distortion: float | None = None  # dB
    duration_error: float | None = None  # ms
    pitch_correlation: float | None = None
    word_error_rate: float | None = None
    is_bound: bool = False  # the voice itself, copy synthesis: a line in the figure that the model can come near to


def spectrograms(pairs: Sequence[MelPair]) -> Section:
    """The first two or three sentences; more would only make the page long."""
    title = "Spectrograms"
    if not len(pairs):
        return Section(title, "There were no sentences to show.")
    figures = [figure for pair in pairs[:_MOST_SENTENCES] for figure in _sentence(pair)]
    text = "Held-out sentences: what the voice said, and what the model makes of the same phonemes."
    return Section(title, text, figures)


def quality(rows: Sequence[Quality], over_steps: Sequence[tuple[int, float]] = ()) -> Section:
    """over_steps: (step, word error rate) of the model after each evaluation; word_errors(run) has them."""
    cells = [
        (row.who, _cell(row.mel_l1, 3), _cell(row.distortion, 2), _cell(row.duration_error, 1),
         _cell(row.pitch_correlation, 3), _cell(row.word_error_rate, 2))
        for row in rows
    ]  # fmt: skip
    caption = (
        "Held-out sentences: mean distance of mels, mel-cepstral distortion, mean error of a phoneme's duration, "
        "correlation of pitch, and word error rate of a recogniser that listens."
    )
    figures = []
    if over_steps:
        bounds = [(row.who, row.word_error_rate) for row in rows if row.is_bound and row.word_error_rate is not None]
        figures = [Figure("Word error rate after each evaluation; lower is better.", _errors(over_steps, bounds))]
    return Section("Quality of speech", figures=figures, tables=[Table(caption, _COLUMNS, cells)])


def word_errors(run: Run) -> list[tuple[int, float]]:
    """(step, word error rate) of every evaluation whose speech was listened to."""
    rates = {row["step"]: number(row, "word_error_rate") for row in _rows(run)}
    return [(step, rate) for step, rate in sorted(rates.items()) if rate is not None]


def recordings_section(run: Run, folder: Path) -> Section | None:
    """The first recording, the last and some between; what cannot be played is told."""
    rows = {row["step"]: row for row in _rows(run)}  # a step that was done again counts once
    if not rows:
        return None
    files, troubles = {}, []
    for step in sorted(rows):
        path, trouble = _file(rows[step], folder)
        if path is not None:
            files[step] = path
        else:
            troubles.append(f"step {step:,} ({trouble})")
    shown = _spread(files)
    texts = {_line(row.get("text")) for row in rows.values()}
    parts = ["What the model said after each evaluation."]
    if len(texts) == 1 and (text := texts.pop()):
        parts.append(f"The sentence: {_quote_to_end(text)}")
    if troubles:
        parts.append(f"Some cannot be played: {', '.join(troubles)}.")
    if len(shown) < len(files):
        parts.append(f"{len(shown)} of {len(files)} are here, to keep the page small; all are in the run folder.")
    recordings = [_recording(rows[step], files[step], bool(texts)) for step in shown]
    caption = "Speech by the step after which it was made." if recordings else ""
    return Section("Recordings", " ".join(parts), recordings=recordings, recordings_caption=caption)


def _rows(run: Run) -> list[Row]:
    return [row for row in run.events if row.get("event") == EVENT]


def _file(row: Row, folder: Path) -> tuple[Path | None, str]:
    """The file, or why there is none."""
    name = row.get("file")
    if not isinstance(name, str) or not _FILE.fullmatch(name):
        return None, f"expected a file samples/step-NNNNNN.wav, got {_line(name) or 'none'}"
    path = folder / name
    try:
        with path.open("rb") as stream:
            head = stream.read(12)
    except FileNotFoundError:
        return None, f"{name} is missing"
    except OSError as error:
        return None, f"{name} cannot be read: {error.strerror}"
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return None, f"{name} is no WAV file"
    return path, ""


def _spread(files: dict[int, Path]) -> list[int]:
    """Steps of as many recordings as may be, evenly, the first and the last among them; the last if only one fits."""
    steps = list(files)
    sizes = {step: -(-files[step].stat().st_size // 3) * 4 for step in steps}  # in base64
    for count in range(min(len(steps), _MOST_RECORDINGS), 0, -1):
        places = [round(i * (len(steps) - 1) / (count - 1)) for i in range(count)] if count > 1 else [-1]
        chosen = [steps[place] for place in places]
        if sum(sizes[step] for step in chosen) <= _MOST_BYTES:
            return chosen
    return []


def _recording(row: Row, path: Path, with_text: bool) -> Recording:
    rate, heard = number(row, "word_error_rate"), row.get("heard")
    notes = [f"The sentence: {_quote_to_end(_line(row.get('text')))}"] if with_text else []
    if isinstance(heard, str):
        heard = _line(heard)
        notes.append(f"The recogniser heard {_quote_to_end(heard)}" if heard else "The recogniser heard nothing.")
    if rate is not None:
        notes.append(f"Word error rate {rate:.2f}.")
    return Recording(path.read_bytes(), f"After step {row['step']:,}", " ".join(notes))


def _sentence(pair: MelPair) -> list[Figure]:
    """Four figures, so that what belongs together stands side by side in a page of two columns."""
    said = _quote(_cut(pair.text))
    values = np.concatenate([np.ravel(pair.true), np.ravel(pair.predicted)])
    values = values[np.isfinite(values)]
    scale = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    seconds = max(len(pair.true), len(pair.predicted), 1) * pair.frame_seconds
    num_rows = min(max(1, -(-len(pair.phonemes) // _PHONEMES_IN_A_ROW)), _MOST_ROWS)
    height = max(2.75, 0.45 + 1.15 * num_rows)
    cut = num_rows * _PHONEMES_IN_A_ROW
    few = f" The first {cut} of {len(pair.phonemes)} phonemes." if len(pair.phonemes) > cut else ""
    return [
        Figure(f"Mel spectrogram of {said}: the voice.", _mel(pair.true, pair.frame_seconds, seconds, scale)),
        Figure(
            f"Mel spectrogram of {said}: the model, in the same colours and on the same time axis.",
            _mel(pair.predicted, pair.frame_seconds, seconds, scale),
        ),
        Figure(f"Pitch and energy of the phonemes of {said}; without voice there is no pitch.", _curves(pair), height),
        Figure(f"Durations of the phonemes of {said}, in ms.{few}", _durations(pair, num_rows), height),
    ]


def _mel(mel: Array, frame_seconds: float, seconds: float, scale: tuple[float, float]) -> Draw:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        ax.grid(False)
        image = ax.imshow(
            np.asarray(mel, np.float32).T, cmap="magma", vmin=scale[0], vmax=scale[1], origin="lower", aspect="auto",
            extent=(0.0, len(mel) * frame_seconds, 0.0, float(mel.shape[1])), interpolation="none",
        )  # fmt: skip
        ax.set_xlim(0.0, seconds)
        ax.set_xlabel("time (s)")
        ax.set_ylabel("mel bin")
        bar = figure.colorbar(image, ax=ax, pad=0.02, aspect=30)
        bar.set_label("ln of the magnitude")
        bar.outline.set_visible(False)

    return draw


def _curves(pair: MelPair) -> Draw:
    places = np.arange(len(pair.phonemes))
    every = max(1, -(-len(places) // _PHONEMES_IN_A_ROW))

    def draw(figure: "matplotlib.figure.Figure") -> None:
        axes: Sequence[Axes] = figure.subplots(2, 1, sharex=True)
        pitches = [_voiced(pair.true_pitch), _voiced(pair.predicted_pitch)]
        energies = [np.asarray(pair.true_energy, float), np.asarray(pair.predicted_energy, float)]
        for ax, label, (true, predicted) in zip(axes, ("pitch (Hz)", "energy"), (pitches, energies), strict=True):
            # Dots, because a phoneme between two without voice has no line to either.
            ax.plot(places, true, "o-", color=LIGHT["grey"], label="voice")
            ax.plot(places, predicted, "s--", color=LIGHT["blue"], label="model", markersize=3.0)
            ax.set_ylabel(label)
        axes[1].set_ylim(bottom=0)
        axes[1].set_xticks(places[::every], list(pair.phonemes)[::every], fontsize=_NAMES)
        axes[1].set_xlabel("phoneme" if every == 1 else f"phoneme (one in {every} is named)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)

    return draw


def _durations(pair: MelPair, num_rows: int) -> Draw:
    milliseconds = 1000 * pair.frame_seconds
    true = milliseconds * np.asarray(pair.true_durations, float)
    predicted = milliseconds * np.asarray(pair.predicted_durations, float)
    shown = min(len(pair.phonemes), num_rows * _PHONEMES_IN_A_ROW)
    each = max(1, -(-shown // num_rows))  # rows of equal length

    def draw(figure: "matplotlib.figure.Figure") -> None:
        axes: list[Axes] = list(figure.subplots(num_rows, 1, sharey=True, squeeze=False)[:, 0])
        for i, ax in enumerate(axes):
            part = slice(i * each, min((i + 1) * each, shown))
            names = list(pair.phonemes)[part]
            places = np.arange(len(names))
            ax.bar(places - 0.2, true[part], 0.4, color=LIGHT["grey"], label="voice")
            ax.bar(places + 0.2, predicted[part], 0.4, color=LIGHT["blue"], label="model")
            ax.set_xlim(-0.6, each - 0.4)
            ax.set_xticks(places, names, fontsize=_NAMES)
            ax.tick_params(axis="x", length=0)
        figure.supylabel("duration (ms)", fontsize=9.5, color=LIGHT["muted"])
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)

    return draw


def _errors(over_steps: Sequence[tuple[int, float]], bounds: Sequence[tuple[str, float]]) -> Draw:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        from matplotlib.ticker import MaxNLocator

        ax = figure.subplots()
        steps, rates = zip(*sorted(over_steps), strict=True)
        ax.plot(steps, rates, "o-", color=LIGHT["blue"], label="this model")
        strokes = ((0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
        for i, (who, rate) in enumerate(bounds):
            colour = LIGHT[("vermilion", "green", "purple")[i % 3]]
            ax.axhline(rate, color=colour, linestyle=strokes[i % 3], label=f"{who}, {rate:.2f}")
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
        ax.set_xlabel("step")
        ax.set_ylabel("word error rate")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.legend(loc="upper right")

    return draw


def _voiced(pitch: Array) -> NDArray[np.float64]:
    """Gaps where there is no voice."""
    values = np.asarray(pitch, np.float64)
    return np.where(values > 0, values, np.nan)


def _cell(value: float | None, decimals: int) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"


def _line(text: object) -> str:
    """One line that a browser can show."""
    if not isinstance(text, str):
        return ""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _cut(text: str, most: int = 90) -> str:
    return text if len(text) <= most else text[:most] + " ..."


def _quote(text: str) -> str:
    return f'"{text}"'


def _quote_to_end(text: str) -> str:
    """A quotation that ends a sentence: one full stop, not two."""
    return _quote(text) + ("" if text.endswith((".", "?", "!")) else ".")

"""The fundamental frequency by Praat's autocorrelation method (Boersma 1993), and means over phonemes.

    frame i of a mel spectrum is heard at (i + 1/2) HOP / RATE seconds: that is where pitch is taken
    phoneme p, which lasts d_p frames, gets the mean of its frames (FastPitch, Lancucki 2020)
"""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import mel

LOWEST = 65.0  # Hz
HIGHEST = 400.0  # Hz
_STEP = mel.HOP / mel.RATE / 2.0  # seconds from one analysis to the next: two a mel frame


def missing() -> str | None:
    """What to install, if pitch cannot be found here."""
    try:
        importlib.import_module("parselmouth")
    except ImportError:
        return "pitch needs praat-parselmouth: pip install 'fullstride[tts]', or take a corpus that is prepared already"
    return None


def pitch(
    samples: NDArray[np.floating], rate: int, num_frames: int, lowest: float = LOWEST, highest: float = HIGHEST
) -> NDArray[np.float32]:
    """(N,) samples to (num_frames,) Hz at the centres of the mel frames, 0 where there is no voice."""
    if not 0.0 < lowest < highest:
        raise ValueError(f"expected 0 < lowest < highest in Hz, got {lowest} and {highest}; speech has 65 to 400")
    if line := missing():
        raise ModuleNotFoundError(line)
    if not len(samples):
        return np.zeros(num_frames, dtype=np.float32)
    parselmouth: Any = importlib.import_module("parselmouth")
    # Praat analyses nothing within half a window of the ends, where mel frames have their centres as well.
    edge = int(np.ceil(3.0 / lowest * rate))
    padded = np.pad(np.asarray(samples, dtype=np.float64), edge)
    found = parselmouth.Sound(padded, sampling_frequency=float(rate)).to_pitch_ac(
        time_step=_STEP, pitch_floor=lowest, pitch_ceiling=highest
    )
    times = found.xs() - edge / rate
    centres = (np.arange(num_frames, dtype=np.float64) + 0.5) * (mel.HOP / mel.RATE)
    return _between(times, found.selected_array["frequency"], centres).astype(np.float32)


def per_phoneme(
    values: NDArray[np.floating], durations: NDArray[np.integer], voiced_only: bool = False
) -> NDArray[np.float32]:
    """(T,) values of frames and (P,) frames of each phoneme to (P,) means; 0 for phonemes of no frames.

    voiced_only: frames of value 0, where pitch has found no voice, do not count.
    """
    if (durations < 0).any() or int(durations.sum()) != len(values):
        raise ValueError(
            f"expected durations from 0 on whose sum is the number of frames, {len(values)}, got a sum of "
            f"{int(durations.sum())} over {len(durations)} phonemes; fit the alignment to the sound first"
        )
    ends = np.cumsum(durations)
    counted = values != 0 if voiced_only else np.ones(len(values), dtype=bool)
    sums = _sums(np.asarray(values, dtype=np.float64), ends)
    return (sums / np.maximum(_sums(counted.astype(np.float64), ends), 1.0)).astype(np.float32)


def _sums(values: NDArray[np.float64], ends: NDArray[np.integer]) -> NDArray[np.float64]:
    """Sums of consecutive pieces by their ends; np.add.reduceat would take one value for an empty piece."""
    return np.diff(np.concatenate([[0.0], np.cumsum(values)])[np.concatenate([[0], ends])])


def _between(
    times: NDArray[np.float64], hertz: NDArray[np.float64], wanted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Between two voiced values on the line that joins them, else the nearer value."""
    after = np.clip(np.searchsorted(times, wanted), 1, len(times) - 1)
    left, right = hertz[after - 1], hertz[after]
    share = np.clip((wanted - times[after - 1]) / (times[after] - times[after - 1]), 0.0, 1.0)
    nearer = np.where(share < 0.5, left, right)
    return np.where((left > 0) & (right > 0), left + share * (right - left), nearer)

"""Sound from mel spectra without a network: fast Griffin-Lim (Perraudin, Balazs, Sondergaard 2013).

    magnitudes   S >= 0 with F S close to M = exp(mel), by S *= F^T (M / F S) / F^T 1 (Lee and Seung 2001)
    first phases those of sinusoids at the peaks of S, which turn from frame to frame (Beauregard et al. 2015)
    each round   c' = analysis(synthesis(S t / |t|)),  t = c' + momentum (c' - c),  c = c'
    second half  S = |c'| F^T (M / F |c'|) / F^T 1: what the mels do not tell of the magnitudes is left to the sound

Synthesis is the least-squares inverse of the analysis in mel.py, so frame i of the sound is frame i of the spectrum.

Measured over flite's slt, 32 rounds: the sound's mels are 0.104 nats off with random phases and fixed magnitudes, 0.100
with phases of sinusoids, 0.052 with magnitudes that are freed half-way, and its STFT (2048) is 0.18, 0.15, 0.11 of its
norm off the original's. Freed from the start, they give mels that are nearer still (0.042), but not fewer word errors
(pocketsphinx, 308 words: 0.036 against 0.026, which may be chance). Momentum 0, 0.5, 0.8, 0.99, 1.2 give STFTs that are
0.17, 0.15, 0.12, 0.12, 0.36 off.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from . import mel as spectra
from .mel import BINS, EDGE, FFT, HOP

_PIECES = FFT // HOP  # of a frame; neighbours share all but one
_ROUNDS = 20  # of magnitudes: F S is within 0.3 % then in 99 of 100 places
_TINY = 1e-8
_LOUDEST = 10.0  # nats; sound at full scale stays under 3, but an untrained network may say anything


@torch.no_grad()
def griffin_lim(mel: Tensor, iterations: int = 32, momentum: float = 0.99, seed: int = 0) -> Tensor:
    """Log-mels (T, 80) to samples (T * HOP,) at RATE, clipped to -1 ... 1; `seed` alone decides about chance."""
    if mel.dim() != 2 or mel.shape[1] != BINS:
        raise ValueError(f"expected log-mels (T, {BINS}), got {tuple(mel.shape)}; take one sentence, frames first")
    if iterations < 0 or not 0.0 <= momentum < 2.0:
        raise ValueError(f"expected iterations >= 0 and 0 <= momentum < 2, got {iterations}, {momentum}; try 32, 0.99")
    if not mel.isfinite().all():
        raise ValueError("expected finite log-mels, got NaN or infinity; look at the network they came from")
    if not len(mel):
        return torch.zeros(0)
    mel = mel.float().clamp(math.log(spectra.FLOOR), _LOUDEST)
    magnitudes, wanted = linear_magnitudes(mel), mel.exp()
    phases = _first_phases(magnitudes, seed)
    envelope = _overlap((spectra.window() ** 2).expand(len(mel), FFT))
    before = None
    for i in range(iterations):
        now = spectra.spectrum(_synthesis(magnitudes * phases, envelope))
        target = now if before is None else now + momentum * (now - before)
        phases = target / target.abs().clamp_min(_TINY)
        if i >= iterations // 2:
            magnitudes = _fitted(now.abs(), wanted)
        before = now
    return _synthesis(magnitudes * phases, envelope).clamp(-1.0, 1.0)


def linear_magnitudes(mel: Tensor) -> Tensor:
    """Log-mels (T, 80) to magnitudes (T, 513) of the FFT, none of them negative; above 8 kHz they are 0.

    They begin as the filters' own mixture of the mels, which is smooth: begun by the pseudo-inverse, they have the same
    F S but ripple between the filters, and the sound's mels were 13 % farther off (slt).
    """
    wanted = mel.exp()
    found = (wanted / spectra.filters().sum(1)) @ _shares()
    for _ in range(_ROUNDS):
        found = _fitted(found, wanted)
    return found


def _fitted(magnitudes: Tensor, wanted: Tensor) -> Tensor:
    """Magnitudes (T, 513) whose mels are nearer to `wanted` (T, 80)."""
    return magnitudes * ((wanted / (magnitudes @ spectra.filters().T).clamp_min(_TINY)) @ _shares())


@functools.cache
def _shares() -> Tensor:
    """(80, 513): F over its sums along the mels, 0 where no filter reaches."""
    filters = spectra.filters()
    return filters / filters.sum(0).clamp_min(1e-12)


def _first_phases(magnitudes: Tensor, seed: int) -> Tensor:
    """Unit complex numbers (T, 513): each bin is a part of the sinusoid at the peak next to it.

    A parabola through the logarithms of a peak and its neighbours gives the sinusoid's frequency; at each bin the
    cycles of a hop are added up from frame to frame, from a random beginning. Signs alternate around a peak, because a
    sinusoid's bins agree in the middle of the window, and phases are those at its begin.
    """
    num_frames, num_bins = magnitudes.shape
    bins = torch.arange(num_bins).expand(num_frames, num_bins)
    logs = magnitudes.clamp_min(_TINY).log()
    left, middle, right = logs[:, :-2], logs[:, 1:-1], logs[:, 2:]
    peaks = F.pad((middle > left) & (middle >= right), (1, 1))
    bend = (left - 2.0 * middle + right).clamp_max(-1e-6)
    places = bins + F.pad((0.5 * (left - right) / bend).clamp(-0.5, 0.5), (1, 1))

    below = torch.where(peaks, bins, -num_bins).cummax(1).values
    above = torch.where(peaks, bins, 2 * num_bins).flip(1).cummin(1).values.flip(1)
    nearest = torch.where(bins - below <= above - bins, below, above).clamp(0, num_bins - 1)

    beginnings = torch.rand(num_bins, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cycles = beginnings + (places.gather(1, nearest).double() * (HOP / FFT)).cumsum(0)
    angles = (2.0 * math.pi * (cycles.gather(1, nearest) + 0.5 * (bins - nearest)).frac()).float()
    return torch.polar(torch.ones_like(angles), angles)


def _synthesis(frames: Tensor, envelope: Tensor) -> Tensor:
    return _overlap(torch.fft.irfft(frames, n=FFT) * spectra.window()) / envelope


def _overlap(frames: Tensor) -> Tensor:
    """(T, 1024) frames, added up HOP apart, without the reflected edges: (T * HOP,)."""
    num_frames = len(frames)
    pieces = frames.reshape(num_frames, _PIECES, HOP)
    total = torch.zeros(num_frames + _PIECES - 1, HOP)
    for i in range(_PIECES):
        total[i : i + num_frames] += pieces[:, i]
    return total.view(-1)[EDGE : EDGE + num_frames * HOP]

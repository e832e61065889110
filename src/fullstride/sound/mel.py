"""Mel spectra by HiFi-GAN's convention at 22.05 kHz, so that its vocoders, and others that follow it, can read them.

    frame i     samples 256 i - 384 ... 256 i + 639, reflected at both ends: its centre is sample 256 i + 128
    magnitude   |S| = sqrt(re^2 + im^2 + 1e-9) of the FFT of the frame times a periodic Hann window
    mel         ln max(F |S|, 1e-5): F are 80 triangles of equal area on Slaney's scale from 0 to 8000 Hz
    energy      the L2 norm of |S|, one number a frame (FastSpeech 2, Ren et al. 2020)

Slaney's scale is linear up to 1000 Hz (15 mels) and logarithmic above (27 mels for a factor of 6.4).
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

CONVENTION = "hifigan-22k"
RATE = 22050  # samples a second
FFT = 1024
HOP = 256  # samples from one frame to the next
BINS = 80
LOWEST = 0.0  # Hz
HIGHEST = 8000.0  # Hz
FLOOR = 1e-5  # of a mel before the logarithm
EDGE = (FFT - HOP) // 2  # samples that are reflected at each end

_TINY = 1e-9  # under the root, as in HiFi-GAN
_LINEAR_HZ = 200.0 / 3.0  # Hz a mel, up to 1000 Hz
_LOG_STEP = math.log(6.4) / 27.0


def mel_and_energy(samples: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) samples at RATE, -1 to 1, to log-mels (T, 80) and energies (T,), fp32; T = N // HOP."""
    spectra = spectrum(samples)
    magnitudes = (spectra.real.square() + spectra.imag.square() + _TINY).sqrt()
    return (magnitudes @ filters().T).clamp_min(FLOOR).log(), magnitudes.norm(dim=1)


def spectrum(samples: Tensor) -> Tensor:
    """(N,) samples to complex spectra (N // HOP, 513)."""
    if samples.dim() != 1 or not samples.is_floating_point():
        raise ValueError(
            f"expected one channel of samples (N,) as floats, got {tuple(samples.shape)} of {samples.dtype}; "
            "mix channels to one, and scale integers to -1 ... 1"
        )
    num_frames = samples.shape[0] // HOP
    if not num_frames:
        return torch.zeros(0, FFT // 2 + 1, dtype=torch.complex64)
    samples = samples.float()
    if samples.shape[0] <= EDGE:  # too short to be reflected
        samples = F.pad(samples, (0, EDGE + 1 - samples.shape[0]))
    padded = F.pad(samples[None], (EDGE, EDGE), mode="reflect")[0]
    return torch.fft.rfft(padded.unfold(0, FFT, HOP)[:num_frames] * window())


@functools.cache
def window() -> Tensor:
    """(1024,): the periodic Hann window."""
    return torch.hann_window(FFT, periodic=True, dtype=torch.float64).float()


@functools.cache
def filters() -> Tensor:
    """F (80, 513): triangles whose corners are equally far apart in mels, each of area 1 over Hz."""
    bottom, top = _mels(LOWEST), _mels(HIGHEST)
    mels = [bottom + (top - bottom) * i / (BINS + 1) for i in range(BINS + 2)]
    corners = torch.tensor([_hertz(mel) for mel in mels], dtype=torch.float64)
    left, middle, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    frequencies = torch.arange(FFT // 2 + 1, dtype=torch.float64) * (RATE / FFT)
    rising, falling = (frequencies - left) / (middle - left), (right - frequencies) / (right - middle)
    return (torch.minimum(rising, falling).clamp_min(0.0) * (2.0 / (right - left))).float()


def _mels(hertz: float) -> float:
    return hertz / _LINEAR_HZ if hertz < 1000.0 else 15.0 + math.log(hertz / 1000.0) / _LOG_STEP


def _hertz(mels: float) -> float:
    return mels * _LINEAR_HZ if mels < 15.0 else 1000.0 * math.exp((mels - 15.0) * _LOG_STEP)

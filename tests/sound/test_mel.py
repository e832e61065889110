"""Mel spectra against librosa's filters, torch.stft and values worked out by hand."""

import math

import pytest
import torch

from fullstride.sound import mel


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        # librosa 0.11: librosa.filters.mel(sr=22050, n_fft=1024, n_mels=80, fmin=0, fmax=8000)
        (0, 1, 0.01552772056311369),
        (0, 2, 0.022651389241218567),
        (10, 18, 0.010964815504848957),
        (27, 47, 0.004059030674397945),
        (40, 78, 0.005315492860972881),
        (60, 180, 0.0),
        (79, 360, 0.0027828318998217583),
        (79, 370, 0.00036702703800983727),
    ],
)
def test_filters_are_those_of_librosa(row, column, value):
    assert mel.filters()[row, column].item() == pytest.approx(value, rel=1e-5)


def test_no_filter_reaches_beyond_the_highest_frequency():
    beyond = math.ceil(mel.HIGHEST / mel.RATE * mel.FFT)
    assert mel.filters().shape == (80, 513)
    assert not mel.filters()[:, beyond:].any()


def test_mels_are_those_of_stft_over_a_reflected_sound():
    samples = 0.1 * torch.randn(5000, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(samples[None], (384, 384), mode="reflect")[0]
    spectra = torch.stft(padded, 1024, 256, window=torch.hann_window(1024), center=False, return_complex=True)
    magnitudes = (torch.view_as_real(spectra).square().sum(-1) + 1e-9).sqrt()
    found, energy = mel.mel_and_energy(samples)
    torch.testing.assert_close(found, (mel.filters() @ magnitudes).clamp_min(1e-5).log().T, rtol=0, atol=1e-5)
    torch.testing.assert_close(energy, magnitudes.norm(dim=0))


@pytest.mark.parametrize("num_samples", [0, 1, 255, 256, 384, 385, 511, 512, 22050])
def test_there_is_a_frame_for_each_whole_hop(num_samples):
    found, energy = mel.mel_and_energy(torch.ones(num_samples))
    assert found.shape == (num_samples // 256, 80)
    assert energy.shape == (num_samples // 256,)
    assert found.isfinite().all()


def test_a_click_is_loudest_in_the_frame_whose_centre_it_is():
    samples = torch.zeros(256 * 12)
    samples[256 * 5 + 128] = 1.0
    assert mel.mel_and_energy(samples)[1].argmax() == 5


def test_silence_is_the_floor():
    found, _ = mel.mel_and_energy(torch.zeros(2048))
    # The root of 1e-9 under each magnitude is above the floor of a broad filter: 3.2e-5 times its sum.
    expected = (math.sqrt(1e-9) * mel.filters().sum(1)).clamp_min(mel.FLOOR).log()
    torch.testing.assert_close(found, expected.expand_as(found))


def test_a_sine_is_in_the_filter_of_its_frequency():
    samples = torch.sin(2.0 * math.pi * 1000.0 * torch.arange(22050) / mel.RATE)
    loudest = mel.mel_and_energy(samples)[0][40].argmax()
    assert loudest == mel.filters()[:, round(1000.0 * mel.FFT / mel.RATE)].argmax()


def test_two_channels_are_refused():
    with pytest.raises(ValueError, match=r"one channel .* got \(2, 600\)"):
        mel.mel_and_energy(torch.zeros(2, 600))


def test_integers_are_refused():
    with pytest.raises(ValueError, match=r"int16"):
        mel.mel_and_energy(torch.zeros(600, dtype=torch.int16))

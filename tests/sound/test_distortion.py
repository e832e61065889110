"""Mel-cepstral distortion: values worked out by hand, and warping against the textbook's double loop."""

import math

import numpy as np
import pytest
import torch

from fullstride.sound import distortion


def textbook(costs: np.ndarray) -> float:
    """The least sum along a path, cell by cell."""
    total = np.full((costs.shape[0] + 1, costs.shape[1] + 1), np.inf)
    total[0, 0] = 0.0
    for i, j in np.ndindex(*costs.shape):
        total[i + 1, j + 1] = costs[i, j] + min(total[i, j], total[i, j + 1], total[i + 1, j])
    return float(total[-1, -1])


def noise(num_frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_frames, 80, generator=torch.Generator().manual_seed(seed))


def test_a_sound_is_not_at_all_away_from_itself():
    assert distortion.mel_cepstral_distortion(noise(50), noise(50)) == 0.0


def test_a_slower_copy_is_not_away_either():
    assert distortion.mel_cepstral_distortion(noise(50), noise(50).repeat_interleave(3, dim=0)) == 0.0


def test_loudness_does_not_count():
    assert distortion.mel_cepstral_distortion(noise(20), noise(20) + 2.5) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("k", [1, 5, 13])
def test_a_ripple_of_half_a_neper_is_its_rms_in_decibels(k):
    ripple = 0.5 * torch.cos(math.pi / 80 * k * (torch.arange(80) + 0.5))
    # An amplitude of 0.5 nat is an RMS of 0.5 / sqrt(2), and a nat of magnitude is 20 / ln 10 dB: 3.07 dB.
    expected = 0.5 / math.sqrt(2.0) * 20.0 / math.log(10.0)
    level = torch.zeros(7, 80)
    assert distortion.mel_cepstral_distortion(level, level + ripple) == pytest.approx(expected, rel=1e-6)


def test_ripples_beyond_the_thirteenth_do_not_count():
    ripple = torch.cos(math.pi / 80 * 14 * (torch.arange(80) + 0.5))
    level = torch.zeros(7, 80)
    assert distortion.mel_cepstral_distortion(level, level + ripple) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2), (5, 9), (40, 23)])
def test_warping_finds_the_cheapest_path(shape):
    costs = np.random.default_rng(1).random(shape)
    rows, columns = distortion.warp(costs)
    assert costs[rows, columns].sum() == pytest.approx(textbook(costs))


def test_a_path_goes_from_corner_to_corner_by_single_steps():
    rows, columns = distortion.warp(np.random.default_rng(2).random((30, 45)))
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, 29, 44)
    assert steps <= {(0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("shape", [(0, 80), (80,), (5, 13)])
def test_what_is_no_mel_spectrum_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected log-mels"):
        distortion.mel_cepstral_distortion(torch.zeros(shape), noise(3))


def test_a_network_that_gave_nan_is_named():
    with pytest.raises(ValueError, match=r"finite"):
        distortion.mel_cepstral_distortion(noise(3), torch.full((3, 80), math.nan))

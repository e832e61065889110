"""Griffin-Lim: its sound has the mels it was made from, frame by frame, and depends on nothing but its arguments."""

import math

import pytest
import torch

from fullstride.sound import mel
from fullstride.sound.griffin_lim import griffin_lim, linear_magnitudes


def harmonics(num_samples: int, low: float = 120.0, high: float = 180.0) -> torch.Tensor:
    """A gliding voice of 20 harmonics, louder and softer in turns, and breath: no recording is empty between them."""
    hertz = torch.linspace(low, high, num_samples, dtype=torch.float64)
    angles = 2.0 * math.pi * hertz.cumsum(0) / mel.RATE
    total = sum(torch.sin(k * angles) / k for k in range(1, 21))
    breath = 0.01 * torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    return (0.2 * total * (1.2 + torch.sin(torch.arange(num_samples) / 2000.0)) + breath).float()


@pytest.fixture(scope="module")
def spoken() -> torch.Tensor:
    """Log-mels (86, 80)."""
    return mel.mel_and_energy(harmonics(22050))[0]


def apart(samples: torch.Tensor, wanted: torch.Tensor) -> float:
    return (mel.mel_and_energy(samples)[0] - wanted).abs().mean().item()


def test_the_sound_has_the_mels_it_was_made_from_in_the_same_frames(spoken):
    found = griffin_lim(spoken)
    assert found.shape == (86 * mel.HOP,)
    assert found.dtype == torch.float32
    assert apart(found, spoken) < 0.1
    assert apart(found[mel.HOP :], spoken[:-1]) > 2.0 * apart(found, spoken)  # a frame beside it


def test_more_rounds_bring_it_nearer(spoken):
    distances = [apart(griffin_lim(spoken, iterations), spoken) for iterations in (0, 4, 32)]
    assert distances == sorted(distances, reverse=True)


def test_momentum_brings_it_nearer_in_the_same_rounds(spoken):
    assert apart(griffin_lim(spoken, momentum=0.99), spoken) < apart(griffin_lim(spoken, momentum=0.0), spoken)


def test_a_sine_comes_back_at_its_frequency_and_loudness():
    sine = 0.3 * torch.sin(2.0 * math.pi * 440.0 * torch.arange(22050) / mel.RATE)
    found = griffin_lim(mel.mel_and_energy(sine)[0])
    assert torch.fft.rfft(found).abs().argmax().item() * mel.RATE / len(found) == pytest.approx(440.0, abs=5.0)
    assert found.square().mean().sqrt().item() == pytest.approx(0.3 / math.sqrt(2.0), rel=0.1)


def test_the_seed_alone_decides(spoken):
    torch.manual_seed(1)
    first = griffin_lim(spoken, 4, seed=7)
    state = torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(1).get_state()), "torch's own generator was used"
    torch.manual_seed(2)
    assert torch.equal(griffin_lim(spoken, 4, seed=7), first)
    assert not torch.equal(griffin_lim(spoken, 4, seed=8), first)


def test_magnitudes_have_the_mels_and_are_not_negative(spoken):
    found = linear_magnitudes(spoken)
    assert (found >= 0.0).all()
    distances = ((found @ mel.filters().T).log() - spoken).abs()
    assert distances.mean() < 0.005
    assert distances.max() < 0.1


@pytest.mark.parametrize("num_frames", [0, 1, 2, 5])
def test_few_frames_give_few_hops(num_frames, spoken):
    found = griffin_lim(spoken[:num_frames])
    assert found.shape == (num_frames * mel.HOP,)
    assert found.isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e30])
def test_what_an_untrained_network_says_is_finite_and_clipped(scale):
    found = griffin_lim(scale * torch.randn(20, 80, generator=torch.Generator().manual_seed(0)), 8)
    assert found.isfinite().all()
    assert found.abs().max() <= 1.0


def test_gradients_are_not_followed(spoken):
    assert not griffin_lim(spoken.clone().requires_grad_(), 1).requires_grad


@pytest.mark.parametrize("shape", [(80,), (80, 30), (1, 30, 80)])
def test_what_is_no_mel_spectrum_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected log-mels \(T, 80\)"):
        griffin_lim(torch.zeros(shape))


def test_nan_is_refused():
    with pytest.raises(ValueError, match=r"finite"):
        griffin_lim(torch.full((3, 80), math.nan))


@pytest.mark.parametrize(("iterations", "momentum"), [(-1, 0.99), (4, -0.1), (4, 2.0)])
def test_settings_beyond_their_range_are_refused(iterations, momentum, spoken):
    with pytest.raises(ValueError, match=r"expected iterations >= 0"):
        griffin_lim(spoken, iterations, momentum)

"""Pitch at the centres of mel frames, and means over phonemes."""

import sys

import numpy as np
import pytest

from fullstride.sound import mel, pitch


def voice(hertz: np.ndarray, rate: int) -> np.ndarray:
    """Eight harmonics of a frequency that is given for each sample."""
    angles = 2.0 * np.pi * np.cumsum(hertz) / rate
    return 0.1 * np.sum([np.sin(k * angles) for k in range(1, 9)], axis=0)


@pytest.mark.parametrize("rate", [16000, 22050])
def test_a_gliding_voice_is_followed_at_the_centres_of_the_frames(rate):
    hertz = np.linspace(100.0, 200.0, rate)
    found = pitch.pitch(voice(hertz, rate), rate, 86)
    centres = (np.arange(86) + 0.5) * mel.HOP / mel.RATE
    # Half a frame beside, a glide of 100 Hz a second would be 0.6 Hz off.
    np.testing.assert_allclose(found[2:-2], (100.0 + 100.0 * centres)[2:-2], atol=0.1)


def test_noise_and_silence_have_no_pitch():
    noise = np.random.default_rng(0).normal(0.0, 0.1, 11025)
    found = pitch.pitch(np.concatenate([noise, np.zeros(11025)]), 22050, 86)
    assert np.count_nonzero(found) <= 3
    assert not found[45:].any()


@pytest.mark.parametrize("num_samples", [0, 1, 100, 600])
def test_a_sound_too_short_for_praat_gets_zeros(num_samples):
    found = pitch.pitch(np.zeros(num_samples), 22050, num_samples // 256)
    assert found.tolist() == [0.0] * (num_samples // 256)


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match=r"lowest < highest"):
        pitch.pitch(np.zeros(1000), 22050, 3, lowest=400.0, highest=65.0)


def test_a_missing_parselmouth_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "parselmouth", None)
    assert "fullstride[tts]" in str(pitch.missing())
    with pytest.raises(ModuleNotFoundError, match=r"^[^\n]*pip install 'fullstride\[tts\]'[^\n]*$"):
        pitch.pitch(np.zeros(1000), 22050, 3)


def test_a_phoneme_gets_the_mean_of_its_frames_and_zero_if_it_has_none():
    found = pitch.per_phoneme(np.array([1.0, 2.0, 6.0, 5.0]), np.array([1, 0, 2, 1, 0]))
    assert found.tolist() == [1.0, 0.0, 4.0, 5.0, 0.0]


def test_frames_without_voice_can_be_left_out_of_the_mean():
    found = pitch.per_phoneme(np.array([100.0, 0.0, 120.0, 0.0, 0.0]), np.array([3, 2]), voiced_only=True)
    assert found.tolist() == [110.0, 0.0]


@pytest.mark.parametrize("durations", [[1, 1], [2, 2], [4, -1], []])
def test_durations_that_do_not_fit_the_frames_are_refused(durations):
    with pytest.raises(ValueError, match=r"the number of frames, 3"):
        pitch.per_phoneme(np.ones(3), np.array(durations, dtype=np.int64))

import itertools
import sys

import numpy as np
import pytest

from fullstride.speech import espeak
from fullstride.speech.spoken import SILENCE

SENTENCE = "Hello world, she paid 5 dollars."


@pytest.mark.parametrize("voice", espeak.VOICES)
def test_every_phoneme_ends_in_order_and_the_last_with_the_sound(voice):
    spoken = espeak.speak(SENTENCE, voice)
    assert spoken.rate == 22050
    assert spoken.samples.dtype == np.float32
    assert len(spoken.phonemes) == len(spoken.ends)
    assert (np.diff(spoken.ends, prepend=0) >= 0).all()
    assert spoken.ends[-1] == len(spoken.samples) / spoken.rate


def test_marks_of_stress_become_digits_behind_the_vowel():
    said = espeak.phonemes("information")
    assert said == (SILENCE, "I2", "n", "f", "30", "m", "eI1", "S", "@0", "n", SILENCE)


def test_silences_are_one_and_stand_at_both_ends():
    said = espeak.phonemes('Yes... "well" - (no); one.')
    assert said[0] == said[-1] == SILENCE
    assert all(a != SILENCE or b != SILENCE for a, b in itertools.pairwise(said))


def test_sound_is_silent_where_it_is_said_to_be():
    spoken = espeak.speak("Stop.", "en-us")
    first, before_last = spoken.ends[0], spoken.ends[-2]
    assert not spoken.samples[: int(first * spoken.rate)].any()
    assert np.abs(spoken.samples[int((before_last + 0.05) * spoken.rate) :]).max() < 0.01
    assert np.abs(spoken.samples).max() > 0.1


def test_same_text_gives_the_same_samples_whatever_was_said_before():
    first = espeak.speak(SENTENCE, "en-us")
    espeak.speak("Something else before it.", "en-gb")
    again = espeak.speak(SENTENCE, "en-us")
    np.testing.assert_array_equal(first.samples, again.samples)
    np.testing.assert_array_equal(first.ends, again.ends)


def test_voices_say_a_word_differently():
    assert espeak.phonemes("hot water", "en-us") != espeak.phonemes("hot water", "en-gb")


@pytest.mark.parametrize("text", ["", "...", "\u6f22\u5b57"])
def test_text_without_words_is_refused(text):
    with pytest.raises(ValueError, match="expected words to say"):
        espeak.speak(text, "en-us")


def test_unknown_voice_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="en-us, en-gb, got 'slt'"):
        espeak.speak("hello", "slt")


def test_missing_package_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    line = espeak.missing()
    assert line is not None
    assert "\n" not in line
    assert "fullstride[tts]" in line
    assert "apt-get install flite" in line
    with pytest.raises(OSError, match="apt-get install flite"):
        espeak.speak("hello", "en-us")

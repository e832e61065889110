import shutil
import subprocess

import numpy as np
import pytest

from fullstride.speech import flite
from fullstride.speech.spoken import SILENCE

needs_flite = pytest.mark.skipif(
    flite.missing() is not None or shutil.which("flite") is None, reason="needs flite, a package of Debian"
)
SENTENCE = "Hello world, she paid 5 dollars for a button; didn't she?"


@needs_flite
@pytest.mark.parametrize("voice", flite.VOICES)
def test_phonemes_and_ends_are_those_the_program_prints(voice):
    command = ["flite", "-voice", voice, "-psdur", "-t", SENTENCE, "-o", "none"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    names, ends = zip(*(item.split(":") for item in printed), strict=True)
    spoken = flite.speak(SENTENCE, voice)
    assert tuple(name.rstrip("012") for name in spoken.phonemes) == names
    np.testing.assert_allclose(spoken.ends[:-1], [float(end) for end in ends[:-1]], atol=0.00051)
    assert spoken.ends[-1] == pytest.approx(len(spoken.samples) / spoken.rate, abs=0.005)


@needs_flite
def test_samples_are_those_the_program_writes(tmp_path):
    command = ["flite", "-voice", "slt", "-t", SENTENCE, "-o", str(tmp_path / "said.wav")]
    subprocess.run(command, check=True)
    written = np.frombuffer((tmp_path / "said.wav").read_bytes()[44:], "<i2")
    flite.speak("Something else before it.", "slt")
    spoken = flite.speak(SENTENCE, "slt")
    assert spoken.rate == 16000
    np.testing.assert_array_equal(spoken.samples * 32768, written)


@needs_flite
def test_vowels_alone_carry_their_stress():
    said = ("pau", "hh", "ax0", "l", "ow1", "w", "er1", "l", "d", "pau")
    assert flite.phonemes("hello world") == said


@needs_flite
def test_every_word_comes_with_its_phonemes_even_if_said_twice():
    hello = ("hello", ("hh", "ax0", "l", "ow1"))
    assert flite.speak("hello hello, world", "slt").words == (hello, hello, ("world", ("w", "er1", "l", "d")))


@needs_flite
def test_curly_quotes_and_accents_are_read_as_plain_ones():
    assert flite.phonemes("caf\u00e9, it\u2019s good") == flite.phonemes("cafe, it's good")


@needs_flite
def test_text_begins_and_ends_with_silence():
    said = flite.phonemes("a")
    assert said[0] == said[-1] == SILENCE


@pytest.mark.parametrize("text", ["", " ", "...", "?!", "\u6f22\u5b57", "\U0001f600"])
def test_text_without_words_is_refused_before_the_library_sees_it(text):
    with pytest.raises(ValueError, match="expected words to say"):
        flite.speak(text, "slt")


def test_unknown_voice_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="slt, rms, awb, kal16, got 'bob'"):
        flite.speak("hello", "bob")


def test_missing_library_is_one_line_that_says_what_to_install(monkeypatch):
    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    flite._library.cache_clear()
    monkeypatch.setattr(flite.ctypes, "CDLL", absent)
    line = flite.missing()
    assert line is not None
    assert "\n" not in line
    assert "apt-get install flite" in line
    assert "fullstride[tts]" in line
    with pytest.raises(OSError, match="apt-get install flite"):
        flite.speak("hello", "slt")

import errno
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

from fullstride.data.speech.texts.everyday import HELD_OUT
from fullstride.speech import flite, recogniser

RATE = recogniser.RATE
needs_flite = pytest.mark.skipif(flite.missing() is not None, reason="needs Debian's flite")


def noise(seconds, seed=0):
    return (0.1 * np.random.Generator(np.random.Philox(seed)).standard_normal(int(seconds * RATE))).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Cat, sat!", "the cat sat"),
        ("Don't we? It's late", "do not we it is late"),
        ("He can\u2019t; I cannot", "he can not i can not"),
        ("We'll see what they've done", "we will see what they have done"),
        ("the dog's bone at three o'clock", "the dog's bone at three o'clock"),
        ("'Well-known' words -- yes", "well known words yes"),
        ("", ""),
    ],
)
def test_words_are_without_case_punctuation_and_contractions(text, expected):
    assert recogniser.words(text) == expected.split()


@pytest.mark.parametrize(
    ("said", "heard", "rate"),
    [
        ("one two three four", "one two three four", 0.0),
        ("one two three four", "one two tree four", 0.25),
        ("one two three four", "one three four", 0.25),
        ("one two three four", "one and two three four", 0.25),
        ("one two three four", "", 1.0),
        ("one", "some other words", 3.0),
        ("one two three four", "two three four one", 0.5),
    ],
)
def test_word_error_rate_counts_the_fewest_changes(said, heard, rate):
    assert recogniser.word_error_rate([said], [heard]) == rate


def test_word_error_rate_is_of_all_words_together():
    assert recogniser.word_error_rate(["one", "two three four"], ["won", "two three four"]) == 0.25


def test_sentences_heard_and_said_must_be_as_many():
    with pytest.raises(ValueError, match="got 1 and 2"):
        recogniser.word_error_rate(["one", "two"], ["one"])


def test_a_rate_of_no_words_is_refused():
    with pytest.raises(ValueError, match="expected words to compare with, got none in 1"):
        recogniser.word_error_rate(["..."], ["hello"])


def test_a_sound_without_samples_has_no_words():
    assert recogniser.transcribe(np.zeros(0, np.float32), RATE) == ""


@pytest.mark.parametrize("length", [1, 100, 20_000])
def test_silence_has_no_words(length):
    assert recogniser.transcribe(np.zeros(length, np.float32), RATE) == ""


def test_samples_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite samples, got NaN or infinity"):
        recogniser.transcribe(np.array([0.0, np.nan], np.float32), RATE)


def test_two_channels_are_refused():
    with pytest.raises(ValueError, match=r"got \(2, 100\)"):
        recogniser.transcribe(np.zeros((2, 100), np.float32), RATE)


def test_the_recogniser_says_nothing_on_the_terminal(capfd):
    recogniser._decoder.cache_clear()
    recogniser.transcribe(noise(0.5), RATE)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_without_pocketsphinx_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    recogniser._decoder.cache_clear()
    with pytest.raises(OSError, match=r"pip install 'fullstride\[tts\]'") as error:
        recogniser.transcribe(noise(0.1), RATE)
    assert "\n" not in str(error.value)


def test_processes_hear_what_one_process_hears():
    sounds = [(noise(0.2 + 0.1 * i, i), RATE) for i in range(3)]
    assert recogniser.transcribe_all(sounds, 2) == [recogniser.transcribe(*sound) for sound in sounds]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_names_the_sound(processes):
    sounds = [(noise(0.1), RATE), (np.full(100, np.inf, np.float32), RATE)]
    with pytest.raises(ValueError, match="sound 1: expected finite samples"):
        recogniser.transcribe_all(sounds, processes)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_called_between_sounds_may_end_it(processes):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recogniser.transcribe_all([(noise(0.1), RATE)] * 3, processes, stop)
    assert multiprocessing.active_children() == []


def test_a_process_that_ends_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(recogniser, "transcribe", os._exit)
    exit_codes: list[Any] = [(0,), (0,)]
    with pytest.raises(RuntimeError, match="sound 0: expected a process to hear it, but one ended"):
        recogniser.transcribe_all(exit_codes, 2)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_process_that_cannot_be_started_is_told_in_one_line(monkeypatch, number):
    def no_process(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ProcessPoolExecutor, "submit", no_process)
    with pytest.raises(recogniser.RecogniserDied, match=r"sound 0: .* but none starts: "):
        recogniser.transcribe_all([(noise(0.1), RATE)] * 2, 2)


def test_no_processes_are_refused():
    with pytest.raises(ValueError, match="from 1 on, got 0"):
        recogniser.transcribe_all([], 0)


@needs_flite
def test_a_voice_is_understood():
    spoken = [flite.speak(text, "rms") for text in HELD_OUT[7:11]]
    heard = recogniser.transcribe_all([(one.samples, one.rate) for one in spoken], 2)
    assert recogniser.word_error_rate(HELD_OUT[7:11], heard) <= 0.1


@needs_flite
def test_a_sentence_is_heard_the_same_whatever_was_heard_before():
    spoken = flite.speak(HELD_OUT[27], "slt")
    first = recogniser.transcribe(spoken.samples, spoken.rate)
    recogniser.transcribe(noise(2.0), RATE)
    assert recogniser.transcribe(spoken.samples, spoken.rate) == first


@needs_flite
def test_a_sound_of_another_rate_is_resampled():
    from fullstride.sound.wav import resample

    spoken = flite.speak(HELD_OUT[10], "rms")
    heard = recogniser.transcribe(resample(spoken.samples, spoken.rate, 22050), 22050)
    assert recogniser.word_error_rate([HELD_OUT[10]], [heard]) <= 0.2

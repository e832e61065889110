"""A voice says what it is told, in the manner it is told."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fullstride import speaking
from fullstride.recipes.fastspeech2 import files
from fullstride.sound.mel import HOP, RATE
from fullstride.speaking import Manner
from fullstride.speech import espeak, flite
from fullstride.train import evaluation

from .recipes.speech_corpus import tiny_run


def load(run):
    return files.load_voice(run, lambda: evaluation.find(run).tensors["model"])


@pytest.fixture(scope="module")
def voice():
    return load(tiny_run(2))


def test_a_text_becomes_frames_and_as_many_hops_of_sound(voice):
    speech = voice.say("The king went home.", iterations=2)
    assert speech.mel.shape == (speech.durations.sum(), 80)
    assert len(speech.samples) == len(speech.mel) * HOP
    assert len(speech.phonemes) == len(speech.durations)
    assert speech.seconds == pytest.approx(len(speech.mel) * HOP / RATE)
    assert speech.notes == ()
    assert speech.model_seconds > 0 < speech.vocoder_seconds


def test_the_first_voice_asked_for_is_speaker_0_and_each_reads_in_its_own_accent(voice):
    assert [speaker.name for speaker in voice.speakers] == ["en-us", "en-gb"]
    us, gb = (voice.say("The car was hot.", Manner(speaker=i), iterations=1).phonemes for i in range(2))
    assert us == voice.front_end.phonemes("The car was hot.", "en-us").phonemes
    assert gb == voice.front_end.phonemes("The car was hot.", "en-gb").phonemes
    assert us != gb


def test_a_line_that_would_take_minutes_to_read_is_refused_at_once(voice, monkeypatch):
    monkeypatch.setattr(espeak, "phonemes", pytest.fail)
    with pytest.raises(ValueError, match=r"at most 10,000 characters, got 11,000; put its sentences on lines"):
        voice.say("Hello there" * 1000)


def test_the_same_text_is_the_same_sound(voice):
    a, b = (voice.say("We like tea.", iterations=2) for _ in range(2))
    assert np.array_equal(a.samples, b.samples)


@pytest.mark.parametrize(("speed", "factor"), [(0.5, 2.0), (2.0, 0.5)])
def test_speed_changes_the_length(voice, speed, factor):
    plain, changed = (voice.say("The queen went in.", Manner(speed=s), iterations=1) for s in (1.0, speed))
    assert len(changed.mel) == pytest.approx(factor * len(plain.mel), abs=1)


def test_factors_of_pitch_and_energy_are_logarithms_in_deviations_of_the_speaker(voice):
    speaker = replace(voice.speakers[1], pitch_deviation=0.25, energy_deviation=0.5)
    told = speaking.Voice(voice.model, voice.front_end, [voice.speakers[0], speaker])
    options = told.options(Manner(pitch=1.1, energy=0.5, speaker=1))
    assert options == {
        "speaker": 1, "speed": 1.0,
        "raise_pitch": pytest.approx(math.log(1.1) / 0.25), "raise_energy": pytest.approx(math.log(0.5) / 0.5),
    }  # fmt: skip


def test_speakers_sound_different(voice):
    mels = [voice.say("We like tea.", Manner(speaker=i), iterations=1).mel for i in range(2)]
    assert mels[0].shape != mels[1].shape or not np.allclose(*mels)


def test_a_speaker_that_is_not_there_is_one_line(voice):
    with pytest.raises(ValueError, match=r"speaker: expected one of 0 en-us, 1 en-gb; got 2"):
        voice.say("Hello.", Manner(speaker=2))


@pytest.mark.parametrize("text", ["", "   ", "\u263a\U0001f600", "...", "{}"])
def test_a_text_with_nothing_to_say_is_one_line(voice, text):
    with pytest.raises(ValueError, match="expected text with words to say, got") as caught:
        voice.say(text)
    assert "\n" not in str(caught.value)


def test_a_text_of_ten_minutes_is_refused_in_one_line(voice):
    with pytest.raises(ValueError, match=r"expected a sentence of at most 1000 phonemes, about a minute, got \d+; put"):
        voice.say("the king went home and " * 400)


def test_without_its_synthesiser_a_voice_reads_by_its_lexicon(voice, monkeypatch):
    monkeypatch.setattr(flite, "missing", lambda: "expected flite, got none")
    monkeypatch.setattr(flite, "phonemes", None)
    lexicon = {"king": ("k", "I1", "N"), "went": ("w", "E1", "n", "t")}
    front_end = replace(voice.front_end, engine="flite", voice="slt", lexicon=lexicon)
    known = [symbol for word in lexicon.values() for symbol in word if symbol in front_end.symbols]
    assert len(known) >= 5
    speech = speaking.Voice(voice.model, front_end, voice.speakers).say("King went.", iterations=1)
    assert "read by the lexicon and letter rules: expected flite, got none" in speech.notes
    assert not any("not in the lexicon" in note for note in speech.notes)
    assert set(known) <= set(speech.phonemes)


def test_sentences_are_joined_by_pauses(voice):
    parts = [voice.say("Hello.", iterations=1)] * 3
    whole = speaking.joined(parts, pause=0.1)
    assert len(whole) == 3 * len(parts[0].samples) + 2 * round(0.1 * RATE)
    assert not whole[len(parts[0].samples) :][: round(0.1 * RATE)].any()
    assert len(speaking.joined([])) == 0


def test_one_thread_works_and_all_are_back_whatever_happens():
    count = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with speaking.one_thread():
            assert torch.get_num_threads() == 1
        with pytest.raises(ValueError, match="expected log-mels"):
            speaking.sound_of(torch.zeros(3, 7))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(count)


# ---- what lies in its folder -----------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(tiny_run(2), tmp_path / "run")
    return tmp_path / "run"


def test_speakers_come_back_as_they_were_saved(copied, voice):
    assert speaking.load_speakers(copied) == voice.speakers


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("speakers.json", None, r"run has no speakers\.json: expected the folder of a run of recipe fastspeech2"),
        ("speakers.json", b"[{}]", r"speakers\.json: expected the speakers of a voice, got a damaged file"),
        ("speakers.json", b"\xff{", r"speakers\.json: expected the speakers of a voice, got a damaged file"),
        ("speakers.json", b"[]", r"speakers\.json: expected 2 entries, as its weights have, got 0"),
        ("front_end.json", None, r"front_end\.json: cannot be read"),
        ("front_end.json", b"{}", r"front_end\.json: expected a saved front end, got damage"),
    ],
)
def test_a_damaged_folder_is_one_line(copied, name, content, message):
    (copied / name).unlink() if content is None else (copied / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load(copied)
    assert "\n" not in str(caught.value)


def test_a_front_end_of_another_corpus_is_one_line(copied):
    entries = json.loads((copied / "front_end.json").read_text())
    entries["symbols"].append("zz")
    (copied / "front_end.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"front_end\.json: expected \d+ entries, as its weights have, got \d+"):
        load(copied)

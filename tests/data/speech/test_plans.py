import json
import pickle

import pytest

from fullstride.data.speech.plans import FolderPlan, SynthesisPlan, engine_here
from fullstride.data.speech.texts import everyday
from fullstride.speech import espeak, flite


def test_voices_take_turns():
    plan = SynthesisPlan("espeak", ("en-us", "en-gb"), texts=("One.", "Two.", "Three."), held_out=("Four.",))
    made = [plan.make(False, number) for number in range(3)]
    assert [(planned.text, planned.speaker) for planned in made] == [
        ("One.", "en-us"), ("Two.", "en-gb"), ("Three.", "en-us")
    ]  # fmt: skip


def test_every_voice_says_every_held_out_sentence():
    plan = SynthesisPlan("espeak", ("en-us", "en-gb"), held_out=("Four.", "Five."))
    made = [plan.make(True, number) for number in range(plan.num_valid)]
    assert {(planned.text, planned.speaker) for planned in made} == {
        (text, voice) for text in ("Four.", "Five.") for voice in ("en-us", "en-gb")
    }


def test_fifty_everyday_sentences_are_held_out_unless_others_are_given():
    plan = SynthesisPlan("espeak", ("en-us",))
    assert plan.num_valid == len(everyday.HELD_OUT) == 50
    assert plan.num_train is None


def test_generated_sentences_are_a_function_of_seed_and_number():
    plan, same, other = (SynthesisPlan("espeak", ("en-us",), seed) for seed in (4, 4, 5))
    assert plan.make(False, 3).text == same.make(False, 3).text != other.make(False, 3).text


@pytest.mark.parametrize("text", ["", "...", "\u4f60\u597d"], ids=["nothing", "marks", "unknown symbols"])
def test_what_cannot_be_said_is_one_line_that_says_which(text):
    plan = SynthesisPlan("espeak", ("en-us",), texts=("One.", text))
    with pytest.raises(ValueError, match=r"^sentence 1 \(en-us\): expected words to say, got "):
        plan.make(False, 1)


def test_a_folder_is_split_by_chance_of_the_seed(recordings):
    splits = {(p.num_train, p.num_valid, p._split[1][0].name) for p in (FolderPlan(recordings, s) for s in range(9))}
    assert {(train, valid) for train, valid, _ in splits} == {(3, 1)}
    assert len(splits) > 1


def test_a_share_of_a_folder_is_held_out(recordings):
    plan = FolderPlan(recordings, valid_share=0.5)
    assert (plan.num_train, plan.num_valid) == (2, 2)
    names = [recording.name for part in plan._split for recording in part]
    assert sorted(names) == ["four", "one", "three", "two"]


def test_a_recording_without_text_is_not_held_out(recordings):
    for seed in range(9):
        (recordings / "metadata.csv").write_text("one|\ntwo|Where is the door?\nthree|\n")
        assert [recording.name for recording in FolderPlan(recordings, seed)._split[1]] == ["two"]


@pytest.mark.parametrize("seed", range(6))
def test_of_no_speaker_all_recordings_are_held_out(recordings, seed):
    lines = (recordings / "metadata.csv").read_text().splitlines()
    speakers = ("alone", "both", "both", "both")
    told = [f"{line}||{speaker}" for line, speaker in zip(lines, speakers, strict=True)]
    (recordings / "metadata.csv").write_text("\n".join(told))
    train, held_out = FolderPlan(recordings, seed, valid_share=0.9)._split
    assert {recording.speaker for recording in train} == {"alone", "both"}
    assert len(held_out) == 2


def test_settings_of_a_folder_do_not_grow_with_it(recordings):
    assert len(json.dumps(FolderPlan(recordings).settings)) < 200


def test_sources_of_a_folder_change_with_its_files(recordings):
    before = FolderPlan(recordings).sources(False, range(3))
    assert FolderPlan(recordings).sources(False, range(3)) == before
    for path in (recordings / "wavs").iterdir():
        path.write_bytes(b"")
    assert FolderPlan(recordings).sources(False, range(3)) != before


def test_a_plan_can_be_sent_to_a_process(recordings):
    for plan in (SynthesisPlan("espeak", ("en-us",), texts=("One.",)), FolderPlan(recordings)):
        assert pickle.loads(pickle.dumps(plan)).make(False, 0).text == plan.make(False, 0).text


def test_the_first_synthesiser_that_is_here_is_taken(monkeypatch):
    monkeypatch.setattr(flite, "missing", lambda: "get flite")
    assert engine_here() == "espeak"
    monkeypatch.setattr(flite, "missing", lambda: None)
    assert engine_here() == "flite"
    assert engine_here("espeak") == "espeak"


def test_without_a_synthesiser_all_ways_out_are_named(monkeypatch):
    monkeypatch.setattr(flite, "missing", lambda: "get flite")
    monkeypatch.setattr(espeak, "missing", lambda: "get espeak")
    with pytest.raises(ValueError, match=r"flite: get flite; espeak: get espeak; or give a folder .* --recordings DIR"):
        engine_here()


def test_an_unknown_synthesiser_is_one_line():
    with pytest.raises(ValueError, match=r"--engine: expected one of flite, espeak, got festival"):
        engine_here("festival")

import json
import math

import numpy as np
import pytest

from fullstride.data.speech import corpus as corpora
from fullstride.data.speech import shards
from fullstride.data.speech.corpus import load, seal
from fullstride.data.speech.shards import Shard

from .test_shards import utterance


@pytest.fixture
def made(tmp_path):
    """Two speakers to train on; the energies of a sentence of two phonemes are 1 and 2, its pitches 100 and 200 Hz."""
    content = {
        "train-00000": [utterance("a", ["pau", "t"], [2, 3]), utterance("b", ["t", "iy1"], [1, 4], "bob")],
        "train-00001": [utterance("c", ["k", "pau"], [2, 2])],
        "valid-00000": [utterance("d", ["ah0", "pau"], [1, 4])],
    }
    for name, utterances in content.items():
        shards.write(tmp_path / f"{name}.safetensors", utterances, [f"{name}: bad"], ["mixed from 2 channels"])
    files = [Shard(tmp_path / f"{name}.safetensors") for name in content]
    return seal(tmp_path, files[:2], files[2:], {"seed": 3})


def test_a_corpus_knows_what_it_holds(made):
    assert made.num_train == 3
    assert made.symbols == ("ah0", "iy1", "k", "pau", "t")  # of the held-out ones, too
    assert made.speakers == ("anna", "bob")
    assert made.seconds == pytest.approx(14 * 256 / 22050)
    assert made.settings == {"seed": 3}


def test_what_was_skipped_and_noted_is_that_of_all_shards(made):
    assert made.skipped == ["train-00000: bad", "train-00001: bad", "valid-00000: bad"]
    assert made.notes == {"mixed from 2 channels": 3}


def test_statistics_are_of_logarithms_by_speaker(made):
    for spread, lowest in zip((*made.pitch, *made.energy), (100, 100, 1, 1), strict=True):
        assert spread.mean == pytest.approx(math.log(lowest) + math.log(2) / 2)
        assert spread.deviation == pytest.approx(math.log(2) / 2)


def test_a_voice_without_melody_is_not_divided_by_nothing():
    assert corpora._spread(np.full(5, 4.6)) == (pytest.approx(4.6), 1.0)
    assert corpora._spread(np.empty(0)) == (0.0, 1.0)


def test_the_lexicon_is_of_the_texts_to_train_on(made):
    assert made.lexicon()["text"] in {("pau", "t"), ("t", "iy1"), ("k", "pau")}


def test_a_loaded_corpus_is_the_one_that_was_sealed(made):
    assert load(made.folder) == made


def test_another_content_has_another_fingerprint(made):
    other = seal(made.folder, made.train[:1], made.valid, made.settings)
    assert other.fingerprint != made.fingerprint


def test_no_corpus_says_how_to_make_one(tmp_path):
    line = r"no corpus of speech in .*`fullstride data speech --hours 2` makes one"
    with pytest.raises(FileNotFoundError, match=line):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: b"[]",
        lambda text: b"{}",
        lambda text: b"\xff\xfe\x00",
        lambda text: text.replace(b'"anna"', b'"anne"'),
        lambda text: text.replace(b'"seed": 3', b'"seed": 4'),
        lambda text: json.dumps(json.loads(text) | {"convention": "other"}).encode(),
    ],
    ids=["empty", "half", "a list", "nothing in it", "not UTF-8", "a name", "a digit", "a convention"],
)
def test_a_damaged_manifest_is_one_line_that_says_what_to_do(made, damage):
    path = made.folder / corpora.MANIFEST
    path.write_bytes(damage(path.read_bytes()))
    line = r"expected a corpus as `fullstride data speech` wrote it, .* call it again"
    with pytest.raises(ValueError, match=line) as got:
        load(made.folder)
    assert str(made.folder) in str(got.value)
    assert "\n" not in str(got.value)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_damaged_shard_is_named(made, damage):
    path = made.train[1].path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"train-00001.safetensors is not as it was written"):
        load(made.folder)


def test_a_manifest_leads_to_no_file_outside_of_its_folder(made, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "train-00001.safetensors"
    made.train[1].path.rename(outside)
    content = json.loads((made.folder / corpora.MANIFEST).read_bytes())
    content["train"][1][0] = str(outside)
    del content["sha256"]
    (made.folder / corpora.MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"is missing"):
        load(made.folder)


def test_a_corpus_with_nothing_to_hold_out_is_not_sealed(made):
    (made.folder / corpora.MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"got 3 and 0; 2 were skipped, the first: train-00000: bad"):
        seal(made.folder, made.train, [], {})
    assert not (made.folder / corpora.MANIFEST).exists()


def test_a_speaker_who_was_only_held_out_is_named_and_nothing_is_sealed(made):
    (made.folder / corpora.MANIFEST).unlink()
    shards.write(made.folder / "valid-00001.safetensors", [utterance("e", ["t", "pau"], [1, 2], "eve")], [])
    held_out = [*made.valid, Shard(made.folder / "valid-00001.safetensors")]
    with pytest.raises(ValueError, match=r"expected recordings of eve to train on, got some to hold out alone"):
        seal(made.folder, made.train, held_out, {})
    assert not (made.folder / corpora.MANIFEST).exists()


def test_silence_is_a_symbol_also_where_nobody_pauses(tmp_path):
    for name in ("train", "valid"):
        shards.write(tmp_path / f"{name}.safetensors", [utterance(name, ["t", "iy1"], [1, 4])], [])
    made = seal(tmp_path, [Shard(tmp_path / "train.safetensors")], [Shard(tmp_path / "valid.safetensors")], {})
    assert made.symbols == ("iy1", "pau", "t")


def test_speakers_are_numbered_as_voices_were_asked_for(made):
    names = made.speakers
    assert seal(made.folder, made.train, made.valid, {"voices": list(reversed(names))}).speakers == names[::-1]

import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file

from fullstride.data.speech import shards
from fullstride.data.speech.shards import Shard
from fullstride.data.speech.utterance import Utterance


def utterance(name, phonemes, durations, speaker="anna", sound=()):
    frames = sum(durations)
    mel = np.linspace(-11, 2, frames * 80, dtype=np.float16).reshape(frames, 80)
    values = np.arange(1, len(phonemes) + 1, dtype=np.float32)
    return Utterance(
        name, f"Text of {name}.", speaker, tuple(phonemes), np.array(durations, np.int32), 100 * values, values, mel,
        np.array(sound, np.int16), (("text", tuple(phonemes)),),
    )  # fmt: skip


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "train-00000.safetensors"
    both = [utterance("a", ["pau", "t"], [2, 3]), utterance("b", ["t", "iy1", "pau"], [1, 0, 4], "bob", [5, -6])]
    shards.write(path, both, ["c: silence"], ["resampled from 8,000 Hz"], "sources")
    return path


def test_what_is_written_is_read(written):
    shard = Shard(written)
    assert len(shard) == 2
    assert shard.frames.tolist() == [5, 5]
    assert [shard.symbols[i] for i in shard.phonemes] == ["pau", "t", "t", "iy1", "pau"]
    assert [shard.speaker_names[i] for i in shard.speakers] == ["anna", "bob"]
    assert (shard.names, shard.skipped) == (["a", "b"], ["c: silence"])
    assert (shard.notes, shard.sources) == (["resampled from 8,000 Hz"], "sources")
    assert shard.sound.tolist() == [5, -6]
    np.testing.assert_array_equal(shard.mel[5:], utterance("b", ["t", "iy1", "pau"], [1, 0, 4]).mel)


def test_places_of_each_utterance(written):
    starts = {name: values.tolist() for name, values in Shard(written).starts.items()}
    assert starts == {"frames": [0, 5, 10], "phonemes": [0, 2, 5], "samples": [0, 0, 2]}


def test_the_package_of_the_format_reads_it(written):
    found = load_file(written)
    assert found["mel"].shape == (10, 80)
    assert found["durations"].tolist() == [2, 3, 1, 0, 4]


def test_the_same_utterances_are_the_same_bytes(tmp_path):
    for name in "xy":
        shards.write(tmp_path / name, [utterance("a", ["pau", "t"], [2, 3])], [])
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_a_file_of_none_is_read(tmp_path):
    shards.write(tmp_path / "none", [], ["a: silence"])
    assert len(Shard(tmp_path / "none")) == 0
    assert Shard(tmp_path / "none").mel.shape == (0, 80)
    assert Shard(tmp_path / "none").is_whole()


def test_it_is_whole_as_it_was_written(written):
    assert Shard(written).is_whole("sources")


def test_it_is_not_whole_for_other_sources(written):
    assert not Shard(written).is_whole("others")


def test_it_is_not_whole_if_any_byte_is_another(written):
    content = written.read_bytes()
    header = int.from_bytes(content[:8], "little")
    text = content[: 8 + header].rstrip(b" ")  # what the header is padded with counts for nothing
    places = [*range(0, len(text), 7), *range(8 + header, len(content), 13)]
    for place in places:
        written.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not Shard(written).is_whole("sources"), place


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_it_is_not_whole_if_it_was_cut(written, length):
    written.write_bytes(written.read_bytes()[:length])
    assert not Shard(written).is_whole("sources")


def test_it_is_not_whole_if_it_is_not_there(tmp_path):
    assert not Shard(tmp_path / "none").is_whole()


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 64, *(b"\x02" + bytes(7) + x for x in (b"{}", b"[]"))])
def test_another_file_is_one_line(tmp_path, content):
    path = tmp_path / "train-00000.safetensors"
    path.write_bytes(content)
    line = r"train-00000\.safetensors: expected a file of a speech corpus, got a damaged one"
    with pytest.raises(ValueError, match=line):
        len(Shard(path))


def test_another_version_is_one_line(written, monkeypatch):
    monkeypatch.setattr(shards, "VERSION", 2)
    with pytest.raises(ValueError, match=r"version 1, not 2"):
        len(Shard(written))


def test_it_is_sent_to_workers_by_name(written):
    shard = Shard(written)
    assert shard.mel is shard.mel  # it is open
    sent = pickle.dumps(shard)
    assert len(sent) < 500
    assert pickle.loads(sent).names == ["a", "b"]

"""Small corpora: sentences spoken by eSpeak, which pip brings, and the same as a folder of recordings."""

from pathlib import Path

import pytest

from fullstride.data.speech import preparation
from fullstride.data.speech.plans import SynthesisPlan
from fullstride.data.speech.preparation import Wish, prepare

from . import folders

HELD_OUT = ("Good morning.", "Where is the door?", "It rains.", "Come in.")
TEXTS = tuple(f"The {animal} is {place}." for place in ("here", "at home") for animal in ("cat", "dog", "cow", "hen"))


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    """Two sentences each, so that a small corpus has several."""
    monkeypatch.setattr(preparation, "PER_SHARD", 2)


@pytest.fixture
def plan():
    return SynthesisPlan("espeak", ("en-us",), texts=TEXTS, held_out=HELD_OUT)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Of one voice, all of it; for reading only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "PER_SHARD", 2)
        plan = SynthesisPlan("espeak", ("en-us",), texts=TEXTS, held_out=HELD_OUT)
        return prepare(tmp_path_factory.mktemp("speech") / "corpus", plan, Wish(), processes=1)


@pytest.fixture(scope="session")
def sounds():
    return folders.spoken()


@pytest.fixture
def recordings(tmp_path, sounds) -> Path:
    """A folder of four recordings as LJSpeech's is: metadata.csv, wavs and TextGrid."""
    return folders.write(tmp_path / "recordings", sounds)

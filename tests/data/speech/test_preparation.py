import json
import os
import signal
import subprocess
import sys

import pytest

from fullstride.data.speech import corpus as corpora
from fullstride.data.speech import preparation
from fullstride.data.speech.plans import SynthesisPlan
from fullstride.data.speech.preparation import Wish, prepare
from fullstride.speech import flite

from ...faults.disks import Disk
from ...patience import lives, wait_until
from . import conftest


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def of_corpus(corpus):
    """Its manifest and its shards; a preparation may have made more ahead."""
    names = [corpora.MANIFEST, *(shard.path.name for shard in (*corpus.train, *corpus.valid))]
    return {name: (corpus.folder / name).read_bytes() for name in names}


def hours(corpus, shards):
    """So many that the first few shards of the corpus have them."""
    return sum(int(shard.frames.sum()) for shard in corpus.train[:shards]) * 256 / 22050 / 3600


def test_two_processes_make_the_bits_of_one(corpus, plan, tmp_path):
    assert of_corpus(prepare(tmp_path, plan, Wish(), processes=2)) == of_corpus(corpus)


def test_nothing_is_made_again_if_all_is_there(corpus, plan, monkeypatch):
    before = {path: path.stat().st_ino for path in corpus.folder.glob("*.safetensors")}
    monkeypatch.setattr(preparation, "make_shard", None)  # cannot be sent to a process
    again = prepare(corpus.folder, plan, Wish(), processes=1)
    assert {path: path.stat().st_ino for path in corpus.folder.glob("*.safetensors")} == before
    assert again.fingerprint == corpus.fingerprint


def test_a_longer_corpus_begins_with_the_shorter(corpus, plan, tmp_path):
    short = prepare(tmp_path, plan, Wish(hours(corpus, 1)), processes=1)
    assert short.num_train == 2
    shards = of_corpus(short)
    longer = prepare(tmp_path, plan, Wish(hours(corpus, 2)), processes=1)
    assert longer.num_train == 4
    assert of_corpus(longer).items() >= {name: shards[name] for name in shards if name != corpora.MANIFEST}.items()


def test_a_shorter_corpus_than_the_one_there_has_its_first_sentences(corpus, plan, tmp_path):
    whole = prepare(tmp_path, plan, Wish(), processes=1)
    short = prepare(tmp_path, plan, Wish(hours(corpus, 1)), processes=1)
    assert [shard.path for shard in short.train] == [shard.path for shard in whole.train[:1]]


def test_progress_is_told_shard_by_shard(corpus, plan):
    told = []
    prepare(corpus.folder, plan, Wish(), processes=1, progress=lambda seconds, skipped: told.append((seconds, skipped)))
    assert told[-1] == (pytest.approx(corpus.seconds), 0)
    assert [seconds for seconds, _ in told] == sorted({seconds for seconds, _ in told})
    assert len(told) == len(corpus.train)


SCRIPT = """
import sys
import time
from pathlib import Path
from fullstride.data.speech import preparation
from tests.data.speech.conftest import HELD_OUT, TEXTS
from fullstride.data.speech.plans import SynthesisPlan

if __name__ == "__main__":
    preparation.PER_SHARD = 2
    plan = SynthesisPlan("espeak", ("en-us",), texts=TEXTS, held_out=HELD_OUT)
    preparation.prepare(Path(sys.argv[1]), plan, preparation.Wish(), 1, lambda *_: time.sleep(1000))  # until killed
"""


def test_a_killed_preparation_goes_on_and_gives_the_same_bits(corpus, plan, tmp_path, request):
    script, folder = tmp_path / "script.py", tmp_path / "corpus"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(request.config.rootpath)}
    process = subprocess.Popen([sys.executable, script, folder], env=environment, start_new_session=True)
    try:
        wait_until(lambda: (folder / "train-00001.safetensors").exists() or process.poll() is not None)
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)  # that one alone: its workers have to notice by themselves
        process.wait()
    assert not (folder / corpora.MANIFEST).exists()
    with pytest.raises(FileNotFoundError, match=r"goes on with one that was interrupted"):
        corpora.load(folder)
    wait_until(lambda: not lives(process.pid))
    kept = {path: path.stat().st_ino for path in folder.glob("*.safetensors")}
    assert kept
    assert of_corpus(prepare(folder, plan, Wish(), processes=1)) == of_corpus(corpus)
    assert {path: path.stat().st_ino for path in kept} == kept


def test_what_killed_processes_left_half_written_is_removed(corpus, plan):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leaving = corpus.folder / f".train-00001.safetensors.{ended.pid}.partial"
    living = corpus.folder / f".train-00001.safetensors.{os.getpid()}.partial"
    leaving.write_bytes(b"half")
    living.write_bytes(b"half")
    try:
        prepare(corpus.folder, plan, Wish(), processes=1)
        assert not leaving.exists()
        assert living.exists()
    finally:
        living.unlink()


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"texts": ("Something else.", "And more.")}, {"voices": ("en-gb",)}, {"held_out": ("Hello.",)}],
    ids=["seed", "texts", "voices", "held out"],
)
def test_other_settings_in_the_same_folder_are_refused(corpus, changed):
    before = files(corpus.folder)
    same = {"engine": "espeak", "voices": ("en-us",), "texts": conftest.TEXTS, "held_out": conftest.HELD_OUT}
    with pytest.raises(ValueError, match=r"holds a corpus of other settings .* give another --path"):
        prepare(corpus.folder, SynthesisPlan(**(same | changed)), Wish(), processes=1)
    assert files(corpus.folder) == before


def test_another_longest_in_the_same_folder_is_refused(corpus, plan):
    with pytest.raises(ValueError, match=r"--longest"):
        prepare(corpus.folder, plan, Wish(longest=5.0), processes=1)


@pytest.mark.parametrize("damage", [lambda data: data[:-50], lambda data: data[:-9] + b"x" + data[-8:], lambda _: b""],
                         ids=["cut", "a byte", "empty"])  # fmt: skip
def test_a_damaged_shard_is_named_and_made_anew(corpus, plan, tmp_path, damage):
    copy = copied(corpus, tmp_path)
    path = copy / "train-00001.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"train-00001.safetensors is not as it was written\); call it again"):
        corpora.load(copy)
    assert of_corpus(prepare(copy, plan, Wish(), processes=1)) == of_corpus(corpus)


def test_a_missing_shard_is_named_and_made_anew(corpus, plan, tmp_path):
    copy = copied(corpus, tmp_path)
    (copy / "valid-00000.safetensors").unlink()
    with pytest.raises(ValueError, match=r"valid-00000.safetensors is missing"):
        corpora.load(copy)
    assert of_corpus(prepare(copy, plan, Wish(), processes=1)) == of_corpus(corpus)


def copied(corpus, folder):
    for name, content in files(corpus.folder).items():
        (folder / name).write_bytes(content)
    return folder


def test_settings_that_cannot_be_read_are_refused(corpus, plan, tmp_path):
    copied(corpus, tmp_path)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"other settings"):
        prepare(tmp_path, plan, Wish(), processes=1)


def test_a_folder_that_cannot_be_made_is_one_line(plan, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot make the folder .*; give one by --path"):
        prepare(tmp_path / "file" / "corpus", plan, Wish(), processes=1)


def test_a_shard_that_cannot_be_written_is_one_line_and_leaves_nothing(plan, tmp_path):
    """A folder stands where it belongs: that holds for root, too, whom no permission stops."""
    (tmp_path / "train-00000.safetensors" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match=r"cannot write .*train-00000.safetensors: \w+"):
        prepare(tmp_path, plan, Wish(), processes=1)
    assert not [path.name for path in tmp_path.iterdir() if "partial" in path.name or path.name == corpora.MANIFEST]


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(corpus, plan, tmp_path):
    disk = Disk(tmp_path / "disk", 1 << 20)
    try:
        folder = disk.path / "corpus"
        folder.mkdir()
        disk.fill(leave=64 << 10)  # enough for the settings
        with pytest.raises(OSError, match=r"cannot write .*safetensors: No space left on device"):
            prepare(folder, plan, Wish(), processes=1)
        assert [path.name for path in folder.iterdir() if "partial" in path.name or path.name == corpora.MANIFEST] == []
        disk.empty()
        assert of_corpus(prepare(folder, plan, Wish(), processes=1)) == of_corpus(corpus)
    finally:
        disk.close()


def mixed(plan):
    """A sentence that nobody can say among others."""
    return SynthesisPlan(plan.engine, plan.voices, texts=("All is well.", "...", "It is late."), held_out=plan.held_out)


def test_what_cannot_be_said_is_skipped_and_counted(plan, tmp_path):
    corpus = prepare(tmp_path, mixed(plan), Wish(), processes=1)
    assert corpus.num_train == 2
    assert len(corpus.skipped) == 1
    assert corpus.skipped[0].startswith("sentence 1 (en-us): expected words to say, got '...'")


def test_what_cannot_be_said_is_refused_if_that_is_wished(plan, tmp_path):
    with pytest.raises(ValueError, match=r"^sentence 1 \(en-us\): .* \(--bad skip would leave it out\)$"):
        prepare(tmp_path, mixed(plan), Wish(bad="refuse"), processes=1)
    assert not (tmp_path / corpora.MANIFEST).exists()
    assert not (tmp_path / "train-00000.safetensors").exists()


def test_what_an_earlier_call_skipped_is_refused_if_that_is_wished(plan, tmp_path):
    prepare(tmp_path, mixed(plan), Wish(), processes=1)
    with pytest.raises(ValueError, match=r"^sentence 1 \(en-us\): "):
        prepare(tmp_path, mixed(plan), Wish(bad="refuse"), processes=1)


@pytest.mark.parametrize("held_out", [(), ("Go.",)])
def test_sentences_without_an_end_that_cannot_be_used_end_the_preparation(held_out, tmp_path):
    plan = SynthesisPlan("espeak", ("en-us",), **({"held_out": held_out} if held_out else {}))
    assert plan.num_train is None
    with pytest.raises(ValueError, match=r"got 0 and \d.* were skipped, the first: (sentence|everyday) 0 .* s"):
        prepare(tmp_path, plan, Wish(hours=1, longest=0.8), processes=1)


def test_sentences_longer_than_the_longest_are_skipped(plan, tmp_path):
    with pytest.raises(ValueError, match=r"got 0 and 0; 4 were skipped, the first: .* longer than 0.3 s"):
        prepare(tmp_path, plan, Wish(longest=0.3), processes=1)


def test_settings_are_readable(corpus):
    settings = json.loads((corpus.folder / "settings.json").read_bytes())
    assert (settings["engine"], settings["voices"], settings["seed"]) == ("espeak", ["en-us"], 0)


@pytest.mark.skipif(flite.missing() is not None, reason="flite, a Debian package, is not installed")
def test_flite_speaks_a_corpus_of_several_voices(plan, tmp_path):
    voices = SynthesisPlan("flite", ("slt", "rms"), texts=plan.texts[:4], held_out=plan.held_out[:1])
    corpus = prepare(tmp_path, voices, Wish(), processes=1)
    assert corpus.speakers == ("slt", "rms")  # as they were asked for
    assert (corpus.num_train, sum(map(len, corpus.valid))) == (4, 2)
    assert corpus.lexicon()["cat"] == ("k", "ae1", "t")

"""Folders of recordings, good ones and those with one thing wrong: a line that names it, and the rest is used."""

import os
import re

import numpy as np
import pytest

from fullstride.data.speech import corpus as corpora
from fullstride.data.speech import recordings as found
from fullstride.data.speech.dataset import SpeechDataset
from fullstride.data.speech.plans import FolderPlan
from fullstride.data.speech.preparation import Wish, prepare
from fullstride.sound import wav

from . import folders


def prepared(folder, bad="skip"):
    return prepare(folder.parent / "corpus", FolderPlan(folder), Wish(bad=bad), processes=1)


def held_out(folder):
    return FolderPlan(folder)._split[1][0].name


def any_to_train_on(folder):
    """The one held out must not be the bad one: a corpus without it is another matter."""
    return next(name for name in folders.TEXTS if name != held_out(folder))


def rewrite(path, change):
    sound = wav.read(path)
    wav.write(path, *change(sound.samples, sound.rate))


def test_every_sentence_of_a_folder_is_there(recordings):
    corpus = prepared(recordings)
    assert (corpus.num_train, sum(map(len, corpus.valid)), corpus.skipped) == (3, 1, [])
    sets = SpeechDataset(corpus), SpeechDataset(corpus, held_out=True)
    sentences = [data.sentence(i) for data in sets for i in range(len(data))]
    assert {s.text for s in sentences} == set(folders.TEXTS.values())
    assert corpus.speakers == ("speaker",)


def test_a_recording_of_what_a_synthesiser_said_has_its_phonemes_and_durations(recordings, sounds):
    data = SpeechDataset(prepared(recordings))
    for sentence in map(data.sentence, range(len(data))):
        spoken = sounds[os.path.basename(sentence.name).removesuffix(".wav")]
        assert sentence.phonemes == spoken.phonemes
        ends = np.cumsum(sentence.durations) * 256 / 22050
        np.testing.assert_allclose(ends[:-1], spoken.ends[:-1], atol=256 / 22050)


def test_long_and_short_text_grids_say_the_same(recordings, sounds):
    long = prepared(recordings)
    for name, spoken in sounds.items():
        (recordings / "TextGrid" / f"{name}.TextGrid").write_text(folders.text_grid(spoken, short=True))
    short = prepare(recordings.parent / "other", FolderPlan(recordings), Wish(), processes=1)
    assert [s.durations.tolist() for s in short.train] == [s.durations.tolist() for s in long.train]


@pytest.mark.parametrize(
    ("line", "text", "speaker"),
    [
        ("one|Dr. No", "Dr. No", "speaker"),
        ("one|Dr. No|Doctor No", "Doctor No", "speaker"),
        ("one|Dr. No||anna", "Dr. No", "anna"),
        ("one.wav| Dr. No |Doctor No|anna", "Doctor No", "anna"),
        ("\ufeffone|Caf\u00e9", "Caf\u00e9", "speaker"),
    ],
    ids=["two columns", "three", "four, one empty", "four", "a byte-order mark"],
)
def test_columns_of_the_metadata(recordings, line, text, speaker):
    (recordings / "metadata.csv").write_text(f"{line}\r\n\n", encoding="utf-8")
    recording = found.find(recordings)[0]
    assert recording[:3] == ("one", text, speaker)
    assert recording.wrong == ""


def test_speakers_of_the_metadata_are_those_of_the_corpus(recordings):
    table = recordings / "metadata.csv"
    lines = table.read_text().splitlines()
    table.write_text("".join(f"{line}||{'ab'[i % 2]}\n" for i, line in enumerate(lines)))
    assert prepared(recordings).speakers == ("a", "b")


@pytest.mark.parametrize("rate", [8000, 44100])
def test_another_rate_is_resampled_and_noted(recordings, rate):
    name = any_to_train_on(recordings)
    path = recordings / "wavs" / f"{name}.wav"
    seconds = len(wav.read(path).samples) / wav.read(path).rate
    rewrite(path, lambda samples, before: (wav.resample(samples, before, rate), rate))
    corpus = prepared(recordings)
    assert corpus.notes == {f"resampled from {rate:,} Hz": 1}
    data = SpeechDataset(corpus)
    mel = next(s.mel for s in map(data.sentence, range(len(data))) if s.name == str(path))
    assert len(mel) == pytest.approx(seconds * 22050 / 256, abs=1)


def test_two_channels_are_mixed_and_noted(recordings):
    path = recordings / "wavs" / f"{any_to_train_on(recordings)}.wav"
    sound = wav.read(path)
    path.write_bytes(folders.stereo(sound.samples, sound.rate))
    corpus = prepared(recordings)
    assert corpus.notes == {"mixed from 2 channels": 1}
    assert corpus.skipped == []


def spoil(what, folder, name, spoken):  # noqa: C901  a table
    """Does one thing to a recording."""
    path, grid = folder / "wavs" / f"{name}.wav", folder / "TextGrid" / f"{name}.TextGrid"
    table = folder / "metadata.csv"

    def text(new):
        table.write_text(table.read_text().replace(f"{name}|{folders.TEXTS[name]}\n", new))

    match what:
        case "unreadable":
            path.write_bytes(b"This is no sound at all, but long enough to be one.")
        case "cut":
            path.write_bytes(path.read_bytes()[:-1000])
        case "empty file":
            path.write_bytes(b"")
        case "no samples":
            wav.write(path, np.zeros(0, np.float32), 22050)
        case "silence":
            rewrite(path, lambda samples, rate: (0 * samples, rate))
        case "clipped":
            rewrite(path, lambda samples, rate: (np.sign(samples), rate))
        case "ten minutes":
            wav.write(path, np.tile(np.float32([0.1, -0.1]), 300 * 8000), 8000)
        case "missing":
            path.unlink()
        case "a folder":
            path.unlink()
            path.mkdir()
        case "a pipe":
            path.unlink()
            os.mkfifo(path)
        case "alignment too long":
            grid.write_text(folders.text_grid(spoken[name], stretch=1.5))
        case "alignment missing":
            grid.unlink()
        case "alignment damaged":
            grid.write_text(grid.read_text()[:-200])
        case "alignment huge":
            os.truncate(grid, 1 << 30)
        case "alignment infinite":
            grid.write_text(re.sub(r"size = 2", "size = 1e999", grid.read_text()))
        case "alignment of bytes":
            grid.write_bytes(bytes(range(128, 256)))
        case "no text":
            text(f"{name}|\n")
        case "no words":
            text(f"{name}|... !|?\n")
        case "broken text":
            text(f"{name}|caf\ufffd\n")
        case "one column":
            text(f"{name}\n")
        case "no name":
            text("|It rains.\n")
        case "twice":
            text(f"{name}|One.\n{name}.wav|Two.\n")
        case "outside":
            text(f"../wavs/{name}|One.\n")
        case "absolute":
            text(f"{path}|One.\n")


BAD = {
    "unreadable": r"NAME.wav: expected a WAV file",
    "cut": r"NAME.wav: expected \d+ bytes of samples, got \d+: cut off",
    "empty file": r"NAME.wav: expected a WAV file .*, got an empty file",
    "no samples": r"NAME.wav: expected samples .*, got 0 bytes",
    "silence": r"NAME.wav: silence",
    "clipped": r"NAME.wav: clipped",
    "ten minutes": r"NAME.wav: 600.0 s, longer than 20 s",
    "missing": r"NAME.wav: expected a recording, there is no such file",
    "a folder": r"NAME.wav: expected a recording, there is no such file",
    "a pipe": r"NAME.wav: expected a recording, there is no such file",
    "alignment too long": r"NAME.wav: expected an alignment as long as its sound, .* align this recording again",
    "alignment missing": r"NAME.wav: expected an alignment NAME.TextGrid, got none; .*`mfa align ",
    "alignment damaged": r"NAME.TextGrid: expected .*damaged",
    "alignment huge": r"NAME.TextGrid: expected an alignment of [\d,]+ bytes at most",
    "alignment infinite": r"NAME.TextGrid: expected times and counts, got infinity",
    "alignment of bytes": r"NAME.TextGrid: expected text in UTF-8 or UTF-16",
    "no text": r"metadata.csv: line \d: expected what NAME says, got no text",
    "no words": r"metadata.csv: line \d: expected words that NAME says, got '\?'",
    "broken text": r"metadata.csv: line \d: expected words that NAME says",
    "one column": r"metadata.csv: line \d: expected name\|text, got 'NAME'",
    "no name": r"metadata.csv: line \d: expected name\|text, got '\|It rains.'",
    "twice": r"metadata.csv: line \d: expected NAME once, got it in line \d, too",
    "outside": r"metadata.csv: line \d: expected the name of a recording in wavs, got '../wavs/NAME'",
    "absolute": r"metadata.csv: line \d: expected the name of a recording in wavs, got '/",
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_recording_is_skipped_in_one_line_that_names_it(recordings, sounds, what):
    name = any_to_train_on(recordings)
    spoil(what, recordings, name, sounds)
    corpus = prepared(recordings)
    assert len(corpus.skipped) == 1
    assert re.search(BAD[what].replace("NAME", name), corpus.skipped[0]), corpus.skipped[0]
    assert "\n" not in corpus.skipped[0]
    assert corpus.num_train == (3 if what == "twice" else 2)


@pytest.mark.parametrize("what", ["unreadable", "alignment missing", "no text"])
def test_a_bad_recording_ends_the_preparation_if_that_is_wished(recordings, sounds, what):
    name = any_to_train_on(recordings)
    spoil(what, recordings, name, sounds)
    with pytest.raises(ValueError, match=BAD[what].replace("NAME", name)):
        prepared(recordings, bad="refuse")
    left = [path.name for path in (recordings.parent / "corpus").iterdir()]
    assert corpora.MANIFEST not in left
    assert not [name for name in left if "partial" in name]


def test_a_mended_recording_is_read_again(recordings):
    path = recordings / "wavs" / f"{any_to_train_on(recordings)}.wav"
    good = path.read_bytes()
    path.write_bytes(b"")
    assert prepared(recordings).num_train == 2
    path.write_bytes(good)
    mended = prepared(recordings)
    assert (mended.num_train, mended.skipped) == (3, [])


def test_a_mended_text_is_read_again(recordings):
    prepared(recordings)
    table = recordings / "metadata.csv"
    table.write_text(table.read_text().replace("It rains again.", "It snows again."))
    corpus = prepared(recordings)
    assert "It snows again." in {text for shard in (*corpus.train, *corpus.valid) for text in shard.texts}


def test_recordings_of_other_names_need_another_folder(recordings):
    prepared(recordings)
    with open(recordings / "metadata.csv", "a") as table:
        table.write("five|Five.\n")
    with pytest.raises(ValueError, match=r"names of recordings"):
        prepared(recordings)


def test_sound_after_the_last_phoneme_is_silence(recordings):
    name = any_to_train_on(recordings)
    grid = recordings / "TextGrid" / f"{name}.TextGrid"
    lines = grid.read_text().splitlines()
    assert lines[-1].strip() == 'text = "pau"'
    size = max(i for i, line in enumerate(lines) if "intervals: size" in line)
    count = int(lines[size].split("=")[1])
    lines[size] = f"        intervals: size = {count - 1}"
    grid.write_text("\n".join(lines[:-4]) + "\n")
    data = SpeechDataset(prepared(recordings))
    sentence = next(s for s in map(data.sentence, range(len(data))) if name in s.name)
    assert sentence.phonemes[-1] == "pau"
    assert sentence.durations[-1] >= 8  # the pause of 0.1 s at the end


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "expected metadata.csv with lines of name|text and a folder wavs, got no such file"),
        (b"", "metadata.csv: expected lines of name|text, got none"),
        (b"\n  \n", "metadata.csv: expected lines of name|text, got none"),
        ("one|Caf\u00e9".encode("latin-1"), "metadata.csv: expected UTF-8, got unexpected end of data at byte 7"),
    ],
    ids=["missing", "empty", "blank", "not UTF-8"],
)
def test_metadata_that_is_none_is_one_line(recordings, content, line):
    path = recordings / "metadata.csv"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(line)):
        prepared(recordings)
    assert not (recordings.parent / "corpus").exists()


def test_a_folder_without_any_alignment_says_what_to_run(recordings):
    for path in recordings.glob("TextGrid/*"):
        path.unlink()
    expected = f"`mfa align {recordings / 'wavs'} english_us_arpa english_us_arpa {recordings / 'TextGrid'}`"
    with pytest.raises(ValueError, match=re.escape(expected)):
        prepared(recordings)


def test_one_recording_is_not_enough(recordings):
    (recordings / "metadata.csv").write_text("one|Good morning.\n")
    with pytest.raises(ValueError, match=r"expected sentences to train on and others to hold out, got 0 and 1"):
        prepared(recordings)


@pytest.mark.parametrize("name", ["a name with spaces", "caf\u00e9 \u4f60", "part/one", "a.b.c", "-dash", "one*[x]?"])
def test_names_may_be_odd(recordings, name):
    for folder, end in (("wavs", ".wav"), ("TextGrid", ".TextGrid")):
        path = recordings / folder / f"{name}{end}"
        path.parent.mkdir(exist_ok=True)
        (recordings / folder / f"one{end}").rename(path)
    table = recordings / "metadata.csv"
    table.write_text(table.read_text().replace("one|", f"{name}|"))
    assert prepared(recordings).skipped == []


def test_a_folder_may_be_a_link(recordings, tmp_path):
    (recordings / "wavs").rename(tmp_path / "elsewhere")
    (recordings / "wavs").symlink_to(tmp_path / "elsewhere")
    assert prepared(recordings).skipped == []


def test_the_alignment_of_another_folder_is_not_taken(recordings):
    (recordings / "TextGrid" / "b").mkdir()
    (recordings / "TextGrid" / "one.TextGrid").rename(recordings / "TextGrid" / "b" / "one.TextGrid")
    (recordings / "metadata.csv").write_text("a/one|Good morning.\nb/one|Good morning.\n")
    first, second = found.find(recordings)
    assert "wavs/a/one.wav: expected an alignment one.TextGrid, got none" in first.wrong
    assert (second.alignment, second.wrong) == (recordings / "TextGrid" / "b" / "one.TextGrid", "")


def test_of_two_alignments_neither_is_taken(recordings):
    for speaker in "ab":
        (recordings / "TextGrid" / speaker).mkdir()
        (recordings / "TextGrid" / speaker / "five.TextGrid").touch()
    (recordings / "metadata.csv").write_text("five|Five.\nfive|Five.||b\n")
    neither, one = found.find(recordings)
    assert "wavs/five.wav: expected one alignment, got " in neither.wrong
    assert one.alignment == recordings / "TextGrid" / "b" / "five.TextGrid"

"""WAV files of every kind there and back, and damaged ones, each refused in one line that names it."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullstride.sound import wav

SAMPLES = np.array([0.0, 0.5, -0.5, 0.25, -1.0, 0.75])  # exact in 8 bits already
EXTENSIBLE = bytes.fromhex("000000001000800000aa00389b71")


def encoded(values: np.ndarray, kind: int, bits: int) -> bytes:
    if kind == 3:
        return values.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return (values * 128 + 128).astype(np.uint8).tobytes()
    whole = (values * 2.0**31).astype("<i4").view(np.uint8).reshape(-1, 4)
    return whole[:, 4 - bits // 8 :].tobytes()


def riff(data: bytes, kind: int = 1, bits: int = 16, channels: int = 1, rate: int = 8000, extensible=False) -> bytes:
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, rate, rate * block, block, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, kind) + EXTENSIBLE
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def saved(folder: Path, content: bytes) -> Path:
    path = folder / "sound.wav"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("kind", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_every_width_is_read_exactly(kind, bits, extensible, tmp_path):
    path = saved(tmp_path, riff(encoded(SAMPLES, kind, bits), kind, bits, extensible=extensible))
    sound = wav.read(path)
    assert (sound.rate, sound.channels, sound.samples.dtype) == (8000, 1, np.float32)
    assert sound.samples.tolist() == SAMPLES.tolist()


@pytest.mark.parametrize(("bits", "channels"), [(16, 1), (24, 1), (24, 2)])
def test_what_is_decoded_in_pieces_is_the_whole(bits, channels, tmp_path, monkeypatch):
    path = saved(tmp_path, riff(encoded(np.tile(SAMPLES, 5), 1, bits), 1, bits, channels))
    whole = wav.read(path).samples
    monkeypatch.setattr(wav, "_PIECE", 4)  # the last one is shorter
    assert np.array_equal(wav.read(path).samples, whole)
    assert len(whole) == 30 // channels


def test_channels_are_averaged_and_counted(tmp_path):
    sound = wav.read(saved(tmp_path, riff(encoded(SAMPLES, 1, 24), bits=24, channels=2)))
    assert sound.channels == 2
    assert sound.samples.tolist() == [0.25, -0.125, -0.125]


def test_other_chunks_are_passed_over_also_odd_ones(tmp_path):
    content = riff(encoded(SAMPLES, 1, 16))
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    sound = wav.read(saved(tmp_path, content[:12] + odd + content[12:36] + odd + content[36:]))
    assert sound.samples.tolist() == SAMPLES.tolist()


@pytest.mark.parametrize("size", [0x7FFFF000, 0xFFFFFFFF])
def test_what_came_through_a_pipe_is_read_to_its_end(size, tmp_path):
    content = riff(encoded(SAMPLES, 1, 16))
    sound = wav.read(saved(tmp_path, content[:40] + struct.pack("<I", size) + content[44:]))
    assert sound.samples.tolist() == SAMPLES.tolist()


GOOD = riff(encoded(SAMPLES, 1, 16))


@pytest.mark.parametrize(
    ("content", "came"),
    [
        (b"", "got an empty file"),
        (b"RIFF", "got b'RIFF' and 4 bytes"),
        (b"ID3\x04" + bytes(100), "expected a WAV file"),
        (GOOD[:12], "chunk `fmt `, got the end"),
        (GOOD[:20], "cut off"),
        (GOOD[:36], "chunk `data`, got the end"),
        (GOOD[:-1], "expected 12 bytes of samples, got 11: cut off"),
        (GOOD[:12] + GOOD[36:], "`fmt ` first"),
        (riff(b""), "got 0 bytes"),
        (riff(b"abc"), "blocks of 2 bytes, got 3"),
        (riff(bytes(4), kind=7, bits=8), "got 8 of mu-law"),
        (riff(bytes(4), kind=1, bits=12), "got 12 of PCM"),
        (riff(bytes(4), channels=0), "got 0 channels"),
        (riff(bytes(4), rate=0), "at 0 Hz"),
        (riff(bytes(4), rate=0x7FFFFFF), "at 134217727 Hz"),
        (GOOD[:16] + struct.pack("<I", 0x7FFFFFFF) + GOOD[20:], "expected 2147483647 bytes of chunk b'fmt '"),
        (GOOD[:40] + struct.pack("<I", 0x7FFFEFFF) + GOOD[44:], "expected 2147479551 bytes of samples, got 12"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(content, came, tmp_path):
    path = saved(tmp_path, content)
    with pytest.raises(ValueError, match=r"^[^\n]*: expected [^\n]*, got [^\n]*; [^\n]*$") as raised:
        wav.read(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert came in str(raised.value)


def test_a_missing_file_and_a_folder_are_refused_the_same_way(tmp_path):
    for path in (tmp_path / "nothing.wav", tmp_path):
        with pytest.raises(ValueError, match=r"expected a WAV file, got (No such file|Is a directory)"):
            wav.read(path)


def test_a_file_larger_than_any_sentence_is_not_loaded(tmp_path):
    path = saved(tmp_path, GOOD[:40] + struct.pack("<I", 0x7FFF0000) + GOOD[44:])
    with open(path, "r+b") as file:
        file.truncate(44 + 0x7FFF0000)  # sparse: takes no room
    with pytest.raises(ValueError, match=r"expected at most 1073741824 bytes"):
        wav.read(path)


@given(
    damage=st.lists(st.tuples(st.integers(0, 91), st.integers(0, 255)), max_size=6),
    length=st.none() | st.integers(0, 91),
    extensible=st.booleans(),
)
def test_random_damage_gives_a_sound_or_one_line(damage, length, extensible, tmp_path_factory):
    content = bytearray(riff(encoded(SAMPLES, 3, 32), 3, 32, extensible=extensible))
    for place, value in damage:
        content[place % len(content)] = value
    path = saved(tmp_path_factory.getbasetemp(), bytes(content[:length]))
    try:
        sound = wav.read(path)
    except ValueError as error:
        line = str(error)
    else:
        line = f"{path}: expected "
        assert sound.samples.ndim == 1
        assert len(sound.samples) <= len(content)
    assert line.startswith(f"{path}: expected ")
    assert "\n" not in line


def test_what_is_written_is_read_again(tmp_path):
    path = wav.write(tmp_path / "sound.wav", SAMPLES, 22050)
    sound = wav.read(path)
    assert sound.rate == 22050
    assert sound.samples.tolist() == SAMPLES.tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["sound.wav"]


def test_what_is_too_loud_is_clipped_not_wrapped():
    written = np.frombuffer(wav.as_bytes(np.array([1.0, 2.0, -2.0]), 8000)[44:], dtype="<i2")
    assert written.tolist() == [32767, 32767, -32768]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_not_written_and_the_old_file_stays(value, tmp_path):
    path = saved(tmp_path, GOOD)
    with pytest.raises(ValueError, match=r"finite"):
        wav.write(path, np.array([0.0, value]), 8000)
    assert path.read_bytes() == GOOD


def test_python_reads_what_is_written(tmp_path):
    import wave

    with wave.open(str(wav.write(tmp_path / "sound.wav", SAMPLES, 16000))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth(), file.getnframes()) == (16000, 1, 2, 6)


def sine(hertz: float, rate: int) -> np.ndarray:
    return np.sin(2.0 * np.pi * hertz * np.arange(rate) / rate)


@pytest.mark.parametrize(("source", "target"), [(8000, 22050), (22050, 16000), (48000, 22050), (997, 1009)])
def test_a_sine_stays_itself_at_another_rate(source, target):
    hertz = 0.4 * min(source, target)
    found = wav.resample(sine(hertz, source), source, target)
    middle = slice(target // 4, -target // 4)  # away from where the sound begins and ends
    assert len(found) == target
    np.testing.assert_allclose(found[middle], sine(hertz, target)[middle], atol=2e-4)


@pytest.mark.parametrize("hertz", [11300.0, 15000.0, 23000.0])
def test_what_the_lower_rate_cannot_hold_is_gone(hertz):
    found = wav.resample(sine(hertz, 48000), 48000, 22050)
    assert np.abs(found[5000:-5000]).max() < 1e-3


def test_a_constant_stays_what_it_is_in_every_phase():
    found = wav.resample(np.ones(4000), 16000, 22050)
    np.testing.assert_allclose(found[500:-500], 1.0, atol=1e-5)


@pytest.mark.parametrize("num_samples", [0, 1, 2, 7])
def test_short_sounds_get_their_share_of_samples(num_samples):
    found = wav.resample(np.ones(num_samples), 8000, 22050)
    assert len(found) == -(-num_samples * 22050 // 8000)
    assert np.isfinite(found).all()


def test_the_same_rate_gives_a_copy():
    samples = SAMPLES.astype(np.float32)
    found = wav.resample(samples, 8000, 8000)
    assert found.tolist() == samples.tolist()
    assert not np.shares_memory(found, samples)


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"expected rates from 1 on, got 0 and 8000"):
        wav.resample(SAMPLES, 0, 8000)


def test_ordinary_speech_has_no_problem():
    assert wav.problem(0.9 * sine(200.0, 16000), 16000) is None


def test_a_single_peak_at_full_scale_is_no_problem():
    samples = 0.5 * sine(200.0, 16000)
    samples[100:102] = 1.0
    assert wav.problem(samples, 16000) is None


@pytest.mark.parametrize(
    ("samples", "phrase"),
    [
        (np.zeros(0), "no samples"),
        (0.5 * sine(200.0, 16000)[:1500], "shorter than 0.1 s"),
        (np.tile(sine(200.0, 16000), 21), "longer than 20 s"),
        (0.001 * sine(200.0, 16000), "silence"),
        (np.clip(3.0 * sine(200.0, 16000), -1.0, 1.0), "clipped"),
        (np.full(16000, np.nan), "NaN"),
    ],
)
def test_what_cannot_be_trained_on_is_told_in_a_phrase(samples, phrase):
    assert phrase in str(wav.problem(samples, 16000))

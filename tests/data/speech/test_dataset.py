import numpy as np
import pytest
import torch

from fullstride.data.speech import dataset
from fullstride.data.speech.corpus import Spread
from fullstride.data.speech.dataset import FRAMES, PHONEMES, SpeechDataset

from . import conftest


@pytest.fixture
def train(corpus):
    return SpeechDataset(corpus)


def batch_of(data, *indices):
    return data.batch(np.array(indices, np.int64), np.zeros(len(indices), np.int64))


def test_sentences_are_those_of_the_texts_in_order(train):
    assert [train.sentence(i).text for i in range(len(train))] == list(conftest.TEXTS)


def test_held_out_sentences_have_their_sounds_and_others_none(train, corpus):
    held_out = SpeechDataset(corpus, held_out=True)
    assert [held_out.sentence(i).text for i in range(len(held_out))] == list(conftest.HELD_OUT)
    for sentence in map(held_out.sentence, range(len(held_out))):
        assert len(sentence.sound) // 256 == pytest.approx(len(sentence.mel), abs=1)
        assert 0.05 < np.abs(sentence.sound).max() <= 1
    assert len(train.sentence(0).sound) == 0


def test_durations_add_up_to_the_frames(train):
    for index, frames in enumerate(train.lengths):
        sentence = train.sentence(index)
        assert sentence.durations.sum() == frames == len(sentence.mel)
        assert len(sentence.phonemes) == len(sentence.durations) == len(sentence.pitch) == len(sentence.energy)


def test_a_batch_is_padded_with_zeros_to_the_multiple_behind_its_longest(train):
    phonemes, speakers, durations, pitch, energy, mel = batch_of(train, 0, 7)
    sentences = [train.sentence(0), train.sentence(7)]
    longest = -(-max(len(s.phonemes) for s in sentences) // PHONEMES) * PHONEMES
    frames = -(-max(len(s.mel) for s in sentences) // FRAMES) * FRAMES
    assert [tuple(x.shape) for x in (phonemes, durations, pitch, energy)] == [(2, longest)] * 4
    assert tuple(mel.shape) == (2, frames, 80)
    assert speakers.tolist() == [0, 0]
    for row, sentence in enumerate(sentences):
        count, frames = len(sentence.phonemes), len(sentence.mel)
        assert (phonemes[row, :count] > 0).all()
        assert not phonemes[row, count:].any()
        assert not durations[row, count:].any()
        assert not mel[row, frames:].any()
        np.testing.assert_array_equal(mel[row, :frames], sentence.mel)
        np.testing.assert_array_equal(pitch[row, :count], sentence.pitch)


def test_numbers_of_phonemes_lead_back_to_their_names(train, corpus):
    phonemes = batch_of(train, 3)[0][0]
    assert tuple(corpus.symbols[i - 1] for i in phonemes.tolist() if i) == train.sentence(3).phonemes


def test_types_are_those_a_model_takes(train):
    types = [x.dtype for x in batch_of(train, 1)]
    assert types == [torch.int64] * 3 + [torch.float32] * 3


def test_pitch_and_energy_are_in_deviations(train):
    sentences = [train.sentence(i) for i in range(len(train))]
    voiced = np.concatenate([s.pitch[s.hertz > 0] for s in sentences])
    assert voiced.mean() == pytest.approx(0, abs=1e-4)
    assert voiced.std() == pytest.approx(1, abs=1e-4)
    energy = np.concatenate([s.energy[s.durations > 0] for s in sentences])
    assert energy.mean() == pytest.approx(0, abs=1e-4)


def test_pitch_without_voice_lies_between_its_neighbours():
    hertz = np.array([0, 100, 0, 0, 200, 0], np.float32)
    low, high = np.log(100), np.log(200)
    expected = [low, low, low + (high - low) / 3, low + 2 * (high - low) / 3, high, high]
    np.testing.assert_allclose(dataset._pitch(hertz, Spread(0.0, 1.0)), expected, rtol=1e-6)


def test_a_sentence_without_any_voice_has_the_mean_pitch():
    assert dataset._pitch(np.zeros(3, np.float32), Spread(5.0, 0.2)).tolist() == [0, 0, 0]


def test_a_phoneme_without_energy_has_the_mean():
    scaled = dataset._scaled(np.array([0, np.e], np.float32), Spread(3.0, 2.0))
    np.testing.assert_allclose(scaled, [0, -1], rtol=1e-6)

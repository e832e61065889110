import pickle

import numpy as np
import pytest
import torch

from fullstride.data.synthetic import SyntheticDataset, _centres, _normal

SMALL = SyntheticDataset(num_samples=2000, num_features=33, num_classes=7, seed=3, noise=1.0)
ZEROS = np.zeros(2000, np.int64)


def test_defaults_are_those_of_the_recipe():
    x, labels = SyntheticDataset().batch(np.array([0, 49_999]), np.array([0, 0]))
    assert len(SyntheticDataset()) == 50_000
    assert (x.shape, x.dtype, labels.shape, labels.dtype) == ((2, 784), torch.float32, (2,), torch.int64)
    assert labels.max() < 1000


def test_sample_has_the_same_bits_in_any_batch_and_epoch():
    x, labels = SMALL.batch(np.arange(2000), ZEROS)
    indices = np.array([1999, 5, 5, 77])
    other, other_labels = SMALL.batch(indices, np.array([0, 1, 2, 3]))
    assert torch.equal(other, x[indices])
    assert torch.equal(other_labels, labels[indices])


def test_seeds_and_indices_make_samples_of_their_own():
    x, _ = SMALL.batch(np.arange(2000), ZEROS)
    other, _ = SyntheticDataset(2000, 33, 7, seed=4).batch(np.arange(2000), ZEROS)
    assert len(torch.unique(torch.cat([x, other]), dim=0)) == 4000


def test_validation_split_continues_behind_the_training_samples():
    valid = SyntheticDataset(500, 33, 7, seed=3, noise=1.0, first=1500)
    x, labels = valid.batch(np.arange(500), ZEROS[:500])
    expected, expected_labels = SMALL.batch(np.arange(1500, 2000), ZEROS[:500])
    assert torch.equal(x, expected)
    assert torch.equal(labels, expected_labels)


def test_features_have_mean_zero_and_variance_one():
    x, _ = SyntheticDataset(num_features=200, num_classes=100).batch(np.arange(2000), ZEROS)
    assert abs(x.mean()) < 0.03  # 100 x 200 centres: four standard deviations
    assert abs(x.std() - 1) < 0.02


def test_noise_is_nearly_normal_and_without_correlation():
    n = _normal(np.arange(4000).astype(np.uint64) << np.uint64(3), 50, 1.0).astype(np.float64)
    assert abs((n**3).mean()) < 0.03
    assert abs((n**4).mean() - 2.7) < 0.06  # of four uniform numbers; 3 for a normal one
    correlation = np.corrcoef(n.T) - np.eye(50)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(4000)
    assert np.abs(np.corrcoef(n[:100]) - np.eye(100)).max() < 6 / np.sqrt(50)


def test_classes_are_about_equally_frequent():
    _, labels = SMALL.batch(np.arange(2000), ZEROS)
    assert np.abs(np.bincount(labels) - 2000 / 7).max() < 4.5 * np.sqrt(2000 / 7)


def test_nearest_centre_tells_the_class():
    dataset = SyntheticDataset(num_features=784, num_classes=50, noise=2.0)
    x, labels = dataset.batch(np.arange(400), ZEROS[:400])
    centres = torch.from_numpy(_centres(50, 784, 0, 1 / np.sqrt(5)))
    assert torch.equal(torch.cdist(x, centres).argmin(1), labels)


def test_samples_are_pinned():
    """Another version of the package that made others would make a resumed run another run."""
    x, labels = SyntheticDataset(num_features=4).batch(np.array([0, 12345]), ZEROS[:2])
    assert labels.tolist() == [839, 196]
    expected = [
        [3206792498, 3206971978, 1067356448, 1052535554],
        [1063508662, 1059990871, 1061390808, 3195220175],
    ]
    assert x.numpy().view(np.uint32).tolist() == expected


def test_nothing_is_stored():
    dataset = SyntheticDataset(num_samples=10**12)
    dataset.batch(np.array([10**12 - 1]), ZEROS[:1])
    assert len(pickle.dumps(dataset)) < 500


@pytest.mark.parametrize("name", ["num_samples", "num_features", "num_classes"])
def test_impossible_sizes_are_refused(name):
    with pytest.raises(ValueError, match=f"^{name}: expected a number from 1 on, got 0$"):
        SyntheticDataset(**{name: 0})

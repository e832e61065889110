import gzip
import shlex

import numpy as np
import pytest
import torch

from fullstride.data import idx, mnist, sources
from fullstride.data.augment import DIGITS

FULL = {"train": 30, "t10k": 12}


def digits(num, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (num, 28, 28), np.uint8), random.integers(0, 10, num, np.uint8)


@pytest.fixture
def full(tmp_path):
    for part, num in FULL.items():
        images, labels = digits(num)
        idx.write(tmp_path / f"{part}-images-idx3-ubyte", images)
        idx.write(tmp_path / f"{part}-labels-idx1-ubyte", labels)
    return tmp_path


@pytest.fixture
def subset(tmp_path):
    images, labels = digits(1100)
    images[:, 0, :2] = np.stack(np.divmod(np.arange(1100), 256), 1)  # each tells its number
    idx.write(tmp_path / sources.MNIST_IMAGES, images)
    idx.write(tmp_path / sources.MNIST_LABELS, labels)
    return tmp_path


def all_of(dataset):
    return dataset.batch(np.arange(len(dataset)), np.zeros(len(dataset), np.int64))


@pytest.mark.parametrize(("split", "part"), [("train", "train"), ("valid", "t10k")])
def test_full_set_has_the_split_of_its_files(full, split, part):
    images, labels = digits(FULL[part])
    x, y = all_of(mnist.load(full, split))
    assert (x.shape, x.dtype, y.dtype) == ((FULL[part], 784), torch.float32, torch.int64)
    of_train = digits(FULL["train"])[0] / 255
    mean, std = round(of_train.mean(), 4), round(of_train.std(), 4)
    torch.testing.assert_close(x, (torch.tensor(images).flatten(1) / 255 - mean) / std)
    assert y.tolist() == labels.tolist()


def test_images_keep_their_shape_unless_flat(full):
    x, _ = all_of(mnist.load(full, flat=False))
    assert torch.equal(x.flatten(1), all_of(mnist.load(full))[0])
    assert x.shape == (30, 1, 28, 28)


def test_gzipped_files_are_the_same(full):
    expected = all_of(mnist.load(full))
    for path in list(full.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert all(torch.equal(x, y) for x, y in zip(expected, all_of(mnist.load(full)), strict=True))


def test_subset_is_split_without_overlap_and_always_alike(subset):
    train, valid = mnist.load(subset, "train"), mnist.load(subset, "valid")
    numbers = [split.images[:, 0, 0, :2].long() @ torch.tensor([256, 1]) for split in (train, valid)]
    assert [len(split) for split in numbers] == [100, 1000]
    assert sorted(torch.cat(numbers).tolist()) == list(range(1100))
    assert torch.equal(valid.images, mnist.load(subset, "valid").images)
    _, labels = digits(1100)
    assert train.labels.tolist() == labels[numbers[0]].tolist()


def test_full_files_are_preferred_to_the_subset(subset, full):
    assert len(mnist.load(full, "valid")) == FULL["t10k"]


def test_augmented_images_depend_on_the_epoch_and_labels_do_not(full):
    train = mnist.load(full, augment=DIGITS)
    indices = np.array([3, 4])
    (x, y), (other_x, other_y) = (train.batch(indices, np.full(2, epoch)) for epoch in (0, 1))
    assert not torch.equal(x, other_x)
    assert torch.equal(y, other_y)
    assert torch.equal(x[1:], train.batch(indices[1:], np.zeros(1, np.int64))[0])


def test_missing_data_names_the_command_that_gets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="`fullstride data mnist` gets 5,000"):
        mnist.load()
    elsewhere = tmp_path / "my data"
    with pytest.raises(FileNotFoundError, match=f"`fullstride data mnist --path {shlex.quote(str(elsewhere))}`"):
        mnist.load(elsewhere)


def test_missing_half_of_the_full_set_is_not_made_up_for_by_the_subset(subset, full):
    (full / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-images-idx3-ubyte is missing"):
        mnist.load(full, "valid")


def change(path, at, values):
    content = bytearray(path.read_bytes())
    content[at : at + len(values)] = values
    path.write_bytes(content)


def test_label_out_of_range_names_file_and_position(full):
    path = full / "train-labels-idx1-ubyte"
    change(path, 8 + 17, [12])
    with pytest.raises(ValueError, match=f"^{path}: label 12 of record 17 .byte 25.: expected one from 0 to 9$"):
        mnist.load(full)


def test_truncated_file_names_the_record_in_which_it_ends(full):
    path = full / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[: 16 + 784 * 20 + 5])
    with pytest.raises(ValueError, match=f"^{path}: ends at byte 15701, in record 20 of 30; expected 23536 bytes"):
        mnist.load(full)


def test_bytes_too_many_are_refused(full):
    path = full / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes() + b"abc")
    with pytest.raises(ValueError, match="3 bytes too many after record 29"):
        mnist.load(full)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x03\x00", b"<html>not found</html>"])
def test_file_of_another_kind_is_refused_by_its_first_bytes(full, content):
    path = full / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: expected an IDX file of 3.* is {len(content)} bytes long"):
        mnist.load(full)


def test_held_out_images_of_another_size_are_refused(full):
    idx.write(full / "t10k-images-idx3-ubyte", np.zeros((12, 32, 32), np.uint8))
    with pytest.raises(ValueError, match="expected records of 28 x 28 bytes, got 32 x 32"):
        mnist.load(full, "valid")


def test_labels_of_other_images_are_refused(full):
    idx.write(full / "train-labels-idx1-ubyte", np.zeros(29, np.uint8))
    with pytest.raises(ValueError, match=r"has 30 images and .* 29 labels"):
        mnist.load(full)


@pytest.mark.parametrize("damage", [lambda x: x[:-9], lambda x: x[:40] + bytes(9) + x[49:], lambda x: b"no" + x])
def test_damaged_gzip_file_is_named(full, damage):
    path = full / "train-images-idx3-ubyte"
    path.with_name(f"{path.name}.gz").write_bytes(damage(gzip.compress(path.read_bytes())))
    path.unlink()
    with pytest.raises(ValueError, match=f"^{path}.gz: not a whole gzip file"):
        mnist.load(full)


def test_unknown_split_is_refused(full):
    with pytest.raises(ValueError, match="expected train or valid, got 'test'"):
        mnist.load(full, "test")


# ---- sets that are packed like it


def write(folder, num_classes=10, first=0, size=(28, 28), prefix="", test="t10k", packed=False):
    """Each class three times to train and once held out. Returns the training images."""
    folder.mkdir(exist_ok=True)
    for part, times in (("train", 3), (test, 1)):
        labels = np.tile(np.arange(num_classes, dtype=np.uint8) + first, times)
        images = np.random.default_rng(times).integers(0, 256, (len(labels), *size), np.uint8)
        for name, records in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content = idx.encode(records)
            path = folder / f"{prefix}{name}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
        if part == "train":
            made = images
    return made


@pytest.mark.parametrize("num_classes", [4, 10, 47])
def test_classes_are_those_of_the_labels(tmp_path, num_classes):
    write(tmp_path, num_classes)
    for split in ("train", "valid"):
        assert mnist.load(tmp_path, split).class_names == tuple(map(str, range(num_classes)))


def test_images_may_have_any_size(tmp_path):
    write(tmp_path, size=(32, 20))
    assert all_of(mnist.load(tmp_path, "valid", flat=False))[0].shape == (10, 1, 32, 20)


def test_mean_and_deviation_are_those_of_the_training_images_for_both_splits(tmp_path):
    images = write(tmp_path) / 255
    train, valid = mnist.load(tmp_path), mnist.load(tmp_path, "valid")
    assert train.mean == valid.mean == (round(images.mean(), 4),)
    assert train.std == valid.std == (round(images.std(), 4),)


def test_images_of_one_brightness_are_not_divided_by_nothing(tmp_path):
    write(tmp_path)
    idx.write(tmp_path / "train-images-idx3-ubyte", np.full((30, 28, 28), 51, np.uint8))
    torch.testing.assert_close(all_of(mnist.load(tmp_path))[0], torch.zeros(30, 784))


def test_a_folder_of_fashion_has_the_names_of_its_classes(tmp_path):
    write(tmp_path / "fashion-mnist", packed=True)
    assert mnist.load(tmp_path / "fashion-mnist").class_names[9] == "ankle boot"


def test_letters_of_emnist_stand_upright_and_count_from_0(tmp_path):
    images = write(tmp_path, 26, first=1, prefix="emnist-letters-", test="test", packed=True)
    train, valid = mnist.load(tmp_path), mnist.load(tmp_path, "valid")
    assert np.array_equal(train.images[:, 0].numpy(), images.transpose(0, 2, 1))
    assert train.labels.tolist() == list(range(26)) * 3
    assert valid.labels.tolist() == list(range(26))
    assert (train.class_names[0], train.class_names[-1]) == ("A", "Z")


def test_two_sets_in_a_folder_are_refused(tmp_path):
    write(tmp_path, prefix="emnist-digits-", test="test")
    write(tmp_path, prefix="emnist-letters-", test="test")
    with pytest.raises(ValueError, match=r"expected one set, got several \(emnist-digits, emnist-letters\); put "):
        mnist.load(tmp_path)


def test_a_held_out_label_that_training_does_not_have_is_refused(tmp_path):
    write(tmp_path, 4)
    idx.write(tmp_path / "t10k-labels-idx1-ubyte", np.array([0, 1, 4, 2], np.uint8))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte: label 4 of record 2 .*: expected one from 0 to 3$"):
        mnist.load(tmp_path, "valid")


def test_a_set_without_images_is_refused(tmp_path):
    write(tmp_path)
    idx.write(tmp_path / "train-images-idx3-ubyte", np.zeros((0, 28, 28), np.uint8))
    idx.write(tmp_path / "train-labels-idx1-ubyte", np.zeros(0, np.uint8))
    with pytest.raises(ValueError, match="expected an image at least, got none"):
        mnist.load(tmp_path)

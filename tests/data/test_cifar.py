import numpy as np
import pytest
import torch

from fullstride.data import cifar
from fullstride.data.augment import PHOTOS

ROWS = 6  # of a file
SIZE = {"cifar10": 3073, "cifar100": 3074}
FILES = {
    "cifar10": [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"],
    "cifar100": ["train.bin", "test.bin"],
}
MEAN_STD = {"cifar10": (0.4465, 0.2616), "cifar100": (0.4409, 0.2762)}  # of blue


@pytest.fixture(params=["cifar10", "cifar100"])
def name(request):
    return request.param


@pytest.fixture
def files(tmp_path, name):
    """Files of few records: record j of file i has label 6 i + j (mod 10), and pixels that tell channel and row."""
    num_labels = SIZE[name] - 3072
    pixels = (np.arange(3)[:, None, None] * 50 + np.arange(32)[:, None] + np.zeros(32)).astype(np.uint8).reshape(-1)
    for i, file in enumerate(FILES[name]):
        records = np.empty((ROWS, SIZE[name]), np.uint8)
        records[:, :num_labels] = 99  # coarse
        records[:, num_labels - 1] = (ROWS * i + np.arange(ROWS)) % 10
        records[:, num_labels:] = pixels + np.arange(ROWS, dtype=np.uint8)[:, None]
        records.tofile(tmp_path / file)
    return tmp_path


def all_of(dataset):
    return dataset.batch(np.arange(len(dataset)), np.zeros(len(dataset), np.int64))


def test_records_of_all_files_come_in_order(files, name):
    train, valid = cifar.load(files, name, "train"), cifar.load(files, name, "valid")
    num_train = ROWS * (len(FILES[name]) - 1)
    assert train.labels.tolist() == [i % 10 for i in range(num_train)]
    assert valid.labels.tolist() == [i % 10 for i in range(num_train, num_train + ROWS)]


def test_pixels_are_channels_of_rows(files, name):
    x, labels = all_of(cifar.load(files, name))
    assert (x.shape[1:], x.dtype, labels.dtype) == ((3, 32, 32), torch.float32, torch.int64)
    mean, std = MEAN_STD[name]
    expected = (torch.tensor([2 * 50 + 7 + 4]) / 255 - mean) / std  # record 4: channel 2, row 7
    torch.testing.assert_close(x[4, 2, 7], expected.expand(32))
    assert torch.equal(all_of(cifar.load(files, name, flat=True))[0], x.flatten(1))


def test_augmented_pictures_depend_on_the_epoch(files, name):
    train = cifar.load(files, name, augment=PHOTOS)
    x, other = (train.batch(np.arange(5), np.full(5, epoch))[0] for epoch in (0, 1))
    assert not torch.equal(x, other)


def test_truncated_file_names_the_record_in_which_it_ends(files, name):
    path = files / FILES[name][0]
    path.write_bytes(path.read_bytes()[:-10])
    end = SIZE[name] * ROWS - 10
    with pytest.raises(ValueError, match=f"^{path}: ends at byte {end}, in record 5: expected whole records"):
        cifar.load(files, name)


def test_empty_file_is_refused(files, name):
    (files / FILES[name][0]).write_bytes(b"")
    with pytest.raises(ValueError, match="ends at byte 0, in record 0"):
        cifar.load(files, name)


def test_label_out_of_range_names_file_and_position(files, name):
    path = files / FILES[name][-1]
    content = bytearray(path.read_bytes())
    at = 3 * SIZE[name] + SIZE[name] - 3073
    content[at] = 200
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: label 200 of record 3 .byte {at}.: expected one from 0 to 9"):
        cifar.load(files, name, "valid")


def test_folder_as_the_archive_unpacks_is_found(files, name):
    inside = files / ("cifar-10-batches-bin" if name == "cifar10" else "cifar-100-binary")
    inside.mkdir()
    for file in FILES[name]:
        (files / file).rename(inside / file)
    assert len(cifar.load(files, name, "valid")) == ROWS


def test_missing_file_names_the_command_that_puts_it_there(files, name):
    (files / FILES[name][0]).unlink()
    with pytest.raises(FileNotFoundError, match=f"no {FILES[name][0]} in {files}: .*get .* tar -xzf .* -C {files}`$"):
        cifar.load(files, name)


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected one of cifar10, cifar100, got 'cifar'"):
        cifar.load(tmp_path, "cifar")
    with pytest.raises(ValueError, match="expected train or valid, got 'test'"):
        cifar.load(tmp_path, "cifar10", "test")

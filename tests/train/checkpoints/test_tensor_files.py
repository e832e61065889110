"""safetensors files, written by pieces: what the package of that name reads, and what is read back."""

import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file

from fullstride import durable
from fullstride.train.checkpoints import tensor_files

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool,
    torch.complex64,
]  # fmt: skip
SHAPES = [(), (0,), (3, 0, 2), (1,), (5, 3), (2, 3, 4)]


def write(path, tensors):
    return durable.write(path, tensor_files.Layout(tensors).pieces())


def read(path):
    with durable.Reader(path) as reader:
        return tensor_files.read(reader)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype is tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found[name], tensor))
        assert torch.equal(a, b), name


def of_every_kind():
    generator = torch.Generator().manual_seed(0)
    return {
        f"{dtype} {shape}": (100 * torch.rand(shape, generator=generator)).to(dtype)
        for dtype in DTYPES
        for shape in SHAPES
    }


@pytest.mark.parametrize("reader", [read, load_file], ids=["ours", "the package's"])
def test_every_dtype_and_shape_comes_back(reader, tmp_path):
    tensors = of_every_kind()
    write(tmp_path / "x", tensors)
    assert_same(reader(tmp_path / "x"), tensors)


def test_files_of_the_package_are_read(tmp_path):
    tensors = of_every_kind()
    save_file(tensors, tmp_path / "x", metadata={"format": "pt"})
    assert_same(read(tmp_path / "x"), tensors)


@pytest.mark.parametrize("reader", [read, load_file], ids=["ours", "the package's"])
@pytest.mark.parametrize(
    "view",
    [lambda x: x.t(), lambda x: x[:, 1:3], lambda x: x[1], lambda x: x[:1].expand(4, 6), lambda x: x.flatten()[::5],
     lambda x: torch.view_as_complex(x.view(2, 6, 2)).conj()],
)  # fmt: skip
def test_views_are_written_as_they_look(view, reader, tmp_path):
    tensors = {"view": view(torch.arange(24.0).reshape(4, 6))}
    write(tmp_path / "x", tensors)
    assert_same(reader(tmp_path / "x"), {name: t.resolve_conj() for name, t in tensors.items()})


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path):
    weight = torch.randn(100, 100)
    once, tied = write(tmp_path / "once", {"a": weight}), write(tmp_path / "tied", {"a": weight, "b": weight})
    assert tied.bytes < once.bytes + 100
    loaded = read(tmp_path / "tied")
    assert_same(loaded, {"a": weight, "b": weight})
    assert loaded["a"] is loaded["b"]


def test_views_that_differ_are_not_taken_for_tied(tmp_path):
    x = torch.arange(16.0).reshape(4, 4)
    tensors = {"x": x, "t": x.t(), "flat": x.reshape(-1), "bits": x.view(torch.int32), "half": x[:2], "empty": x[:0],
               "other empty": x[:0]}  # fmt: skip
    write(tmp_path / "x", tensors)
    assert_same(read(tmp_path / "x"), tensors)


def test_the_sum_is_that_of_the_file(tmp_path):
    written = write(tmp_path / "x", of_every_kind())
    assert durable.measure(tmp_path / "x") == written
    assert written.bytes == tensor_files.Layout(of_every_kind()).size == (tmp_path / "x").stat().st_size


def test_nothing_is_held_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "PIECE", 1 << 20)
    tensors = {"x": torch.zeros(8 << 20, dtype=torch.uint8)}
    tracemalloc.start()
    write(tmp_path / "x", tensors)
    durable.measure(tmp_path / "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * durable.PIECE


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ({"x": torch.ones(2, dtype=torch.complex128)}, TypeError),
        ({"x": torch.eye(2).to_sparse()}, TypeError),
        ({"__metadata__": torch.ones(2)}, ValueError),
    ],
)
def test_what_the_format_does_not_have_is_refused(tensors, error):
    with pytest.raises(error, match="expected"):
        tensor_files.Layout(tensors)


def header_only(header, data=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        header_only({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        header_only({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
        header_only({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8)),
        header_only({"x": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, bytes(4)),
        header_only({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(8)),
    ],
)
def test_what_is_no_such_file_is_an_error_before_memory_is_taken(data, tmp_path):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises((ValueError, EOFError)):
        read(tmp_path / "x")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_not_finite_is_found(dtype, value, monkeypatch):
    monkeypatch.setattr(durable, "PIECE", 1 << 10)
    x = torch.full((durable.PIECE // 2 + 1,), torch.finfo(dtype).max, dtype=dtype)
    assert tensor_files.is_finite(x)
    x[-1] = value
    assert not tensor_files.is_finite(x)

import math

import pytest
import torch

from fullstride.ops.grads import (
    accumulate_,
    accumulate_reference_,
    grad_norm,
    grad_norm_reference,
    scale_,
    scale_reference_,
)

from .cases import SIZES, assert_close, for_dtypes, off_by_one, random, strided

BF16 = 1e-7  # relative: blocks of bf16 squares are summed in fp32, and their errors average out
FP32 = 1e-12


def mixed_list():
    sizes = (70001, 0, 1, 40000, 513, 7, 99999)
    return [random(n, dtype=(torch.float32, torch.bfloat16)[n % 2], seed=n) for n in sizes]


@for_dtypes
@pytest.mark.parametrize("size", SIZES)
def test_norm_equals_fp64(isa, size, dtype):
    x = random(size, dtype=dtype)
    norm, finite = grad_norm([x])
    assert finite
    assert norm == pytest.approx(x.double().norm().item(), rel=FP32 if dtype == torch.float32 else BF16, abs=0)


def test_norm_of_a_list_with_mixed_dtypes_equals_the_norm_of_all_its_elements(isa):
    tensors = mixed_list()
    expected = torch.cat([t.double() for t in tensors]).norm().item()
    assert grad_norm(tensors)[0] == pytest.approx(expected, rel=BF16)
    assert grad_norm_reference(tensors)[0] == pytest.approx(expected, rel=1e-12)


def test_norm_of_nothing_is_zero(isa):
    assert grad_norm([]) == (0.0, True)
    assert grad_norm([torch.empty(0), torch.empty(3, 0)]) == (0.0, True)
    assert grad_norm([torch.zeros(5000), torch.zeros(5000, dtype=torch.bfloat16)]) == (0.0, True)


@for_dtypes
@pytest.mark.parametrize("size", [1e30, 1e-30, 3e38, 1.2e-38])
def test_norm_neither_overflows_nor_vanishes(isa, size, dtype):
    x = torch.full((3001,), size).to(dtype)
    norm, finite = grad_norm([x, -x])
    assert finite
    assert norm == pytest.approx(x[0].item() * math.sqrt(6002), rel=1e-6)


@for_dtypes
def test_large_and_small_elements_in_one_block(isa, dtype):
    x = torch.full((1024,), 1e-30).to(dtype)
    x[700] = 1e25
    assert grad_norm([x])[0] == pytest.approx(x[700].item(), rel=1e-12)


@for_dtypes
def test_norm_is_accurate_for_a_billion_elements(isa, dtype):
    x = random(1 << 21, dtype=dtype).add_(3)  # all of one sign and size: errors would add up
    times = 10 if isa == "portable" else 500
    expected = x.double().norm().item() * math.sqrt(times)
    assert grad_norm([x] * times)[0] == pytest.approx(expected, rel=FP32 if dtype == torch.float32 else BF16)


@for_dtypes
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 3, 511, 1024, 16384, 40001])
def test_a_bad_value_anywhere_is_seen(isa, value, at, dtype):
    bad = torch.full((40002,), 3e38).to(dtype)
    assert grad_norm([random(100), bad])[1]
    bad[at] = value
    assert not grad_norm([random(100), bad])[1]
    assert not grad_norm_reference([random(100), bad])[1]


@for_dtypes
def test_norm_does_not_depend_on_layout(isa, dtype):
    x = random(67, 131, dtype=dtype)
    expected = pytest.approx(x.double().norm().item(), rel=BF16)
    for view in (x.t(), strided(x), off_by_one(x), x[:, 3:9].expand(2, 67, 6)[1:]):
        norm = grad_norm([view])[0]
        assert norm == (pytest.approx(view.double().norm().item(), rel=BF16) if view.dim() == 3 else expected)


def test_norm_has_the_same_bits_for_any_number_of_threads(isa, num_threads):
    tensors = mixed_list()
    norms = set()
    for count in (1, 2, 3, 7):
        num_threads(count)
        norms.add(grad_norm(tensors)[0])
    assert len(norms) == 1


def test_dtypes_without_a_kernel_take_part(isa):
    tensors = [torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.float16), torch.tensor([12.0], dtype=torch.float64)]
    assert grad_norm(tensors) == (13.0, True)
    scale_(tensors, 2.0)
    assert [t.item() for t in tensors] == [6.0, 8.0, 24.0]
    accumulate_(tensors[::2], tensors[1:])
    assert [t.item() for t in tensors[::2]] == [14.0, 48.0]


@for_dtypes
@pytest.mark.parametrize("scale", [1.0, -0.3])
def test_accumulate_equals_reference(isa, dtype, scale):
    targets = [random(n, seed=n) for n in SIZES]
    sources = [random(n, dtype=dtype, seed=n + 1) for n in SIZES]
    expected = [t.double() for t in targets]
    accumulate_reference_(expected, sources, scale)
    accumulate_(targets, sources, scale)
    for actual, wide in zip(targets, expected, strict=True):
        assert_close(actual, wide, ulps=1)


@for_dtypes
def test_scale_equals_reference(isa, dtype):
    tensors = [random(n, dtype=dtype, seed=n) for n in SIZES]
    expected = [t.clone() for t in tensors]
    scale_(tensors, 0.7)
    scale_reference_(expected, 0.7)
    assert all(torch.equal(a, b) for a, b in zip(tensors, expected, strict=True))


@pytest.mark.parametrize("target_layout", [torch.clone, torch.t, strided, off_by_one])
@pytest.mark.parametrize("source_layout", [torch.clone, torch.t, strided, off_by_one])
def test_accumulate_pairs_elements_by_their_index_in_any_layout(isa, target_layout, source_layout):
    target, source = target_layout(random(41, 41)), source_layout(random(41, 41, seed=1).bfloat16())
    expected = target + source
    accumulate_([target], [source])
    assert torch.equal(target, expected)


@pytest.mark.parametrize("layout", [torch.t, strided, off_by_one])
def test_scale_leaves_the_gaps_of_a_view_alone(isa, layout):
    x = layout(random(33, 41))
    storage = torch.empty(0).set_(x.untyped_storage())
    outside, expected = storage.double().sum() - x.double().sum(), x * 3
    scale_([x], 3.0)
    assert torch.equal(x, expected)
    assert (storage.double().sum() - x.double().sum()).item() == pytest.approx(outside.item(), abs=1e-6)


def test_nan_and_infinity_pass_through(isa):
    target, source = torch.tensor([1.0, float("inf"), 2.0]), torch.tensor([float("nan"), -float("inf"), float("inf")])
    accumulate_([target], [source])
    assert_close(target, torch.tensor([float("nan"), float("nan"), float("inf")]))
    scale_([target], -1.0)
    assert target[2] == -float("inf")


@pytest.mark.parametrize("change", [lambda x: scale_([x], 2.0), lambda x: accumulate_([x], [torch.ones(3)])])
def test_a_changed_tensor_that_backward_needs_is_noticed(isa, change):
    x, leaf = torch.ones(3), torch.ones(3, requires_grad=True)
    product = (leaf * x).sum()
    change(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_tensors_of_inference_mode_are_taken(isa):
    with torch.inference_mode():
        x = torch.ones(3)
        scale_([x], 2.0)
        accumulate_([x], [torch.ones(3)])
    assert x.tolist() == [3, 3, 3]


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="expected a source for each of 2 targets, got 1"):
        accumulate_([torch.ones(1), torch.ones(1)], [torch.ones(1)])
    with pytest.raises(ValueError, match=r"expected source 0 of the shape of its target, \(2,\), got \(3,\)"):
        accumulate_([torch.ones(2)], [torch.ones(3)])
    with pytest.raises(ValueError, match=r"expected fp32 targets, got torch.bfloat16 at 0"):
        accumulate_([torch.ones(2).bfloat16()], [torch.ones(2)])

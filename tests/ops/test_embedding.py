import pytest
import torch
import torch.nn.functional as F

from fullstride.ops.embedding import _sum_rows, embedding, embedding_reference

from .cases import assert_close, for_dtypes, gradients, off_by_one, random, strided

for_indices = pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=["int64", "int32"])
# vocab, dim, tokens: nothing, one, odd, one past each vector width and tile, more tokens than rows, several threads
SHAPES = [
    (3, 5, 0), (1, 1, 1), (7, 1, 4), (5, 3, 11), (2, 9, 33), (13, 17, 5), (31, 33, 64), (4, 127, 300), (3, 1025, 7),
    (9, 2051, 3), (509, 64, 1000),
]  # fmt: skip


def tokens(vocab, *shape, dtype=torch.int64, seed=5):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradient(indices, dy, vocab, padding_idx=None):
    weight = torch.zeros(vocab, dy.shape[-1], dtype=dy.dtype, requires_grad=True)
    return torch.autograd.grad(embedding(indices, weight, padding_idx), weight, dy)[0]


def sums(indices, dy, vocab):
    """The gradient by its definition: in fp32, token after token."""
    dweight = torch.zeros(vocab, dy.shape[-1])
    for i, index in enumerate(indices.flatten().tolist()):
        dweight[index] += dy.view(-1, dy.shape[-1])[i].float()
    return dweight


@for_dtypes
@for_indices
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_forward_and_backward(isa, shape, index_dtype, dtype):
    vocab, dim, count = shape
    weight, indices = random(vocab, dim, dtype=dtype), tokens(vocab, count, dtype=index_dtype)
    (out,), (dweight,) = gradients(lambda w: embedding(indices, w), (weight,))
    _, (expected,) = gradients(lambda w: embedding_reference(indices, w), (weight.double(),))
    assert torch.equal(out, weight[indices])
    assert dweight.dtype == dtype
    assert_close(dweight, expected, ulps=8)


@for_dtypes
def test_gradient_is_summed_in_fp32_in_order_and_rounded_once(isa, dtype):
    indices, dy = tokens(6, 700), random(700, 67, dtype=dtype)
    assert torch.equal(gradient(indices, dy, 6), sums(indices, dy, 6).to(dtype))


@pytest.mark.parametrize("hot", [0, 250, 499])
def test_same_bits_for_any_number_of_threads_when_one_token_is_most_of_the_batch(isa, hot, num_threads):
    indices, dy = tokens(500, 4096), random(4096, 200)
    indices[torch.rand(4096, generator=torch.Generator().manual_seed(1)) < 0.9] = hot
    results = []
    for threads in [1, 2, 3, 7]:
        num_threads(threads)
        results.append(gradient(indices, dy, 500))
    assert all(torch.equal(results[0], other) for other in results[1:])
    assert torch.equal(results[0], sums(indices, dy, 500))


def test_indices_may_have_any_shape(isa):
    weight = random(9, 8)
    assert embedding(torch.tensor(3), weight).shape == (8,)
    assert torch.equal(embedding(tokens(9, 2, 3, 4), weight), weight[tokens(9, 2, 3, 4)])


@for_dtypes
@pytest.mark.parametrize("padding_idx", [0, 4, -1])
def test_padding_gets_no_gradient(isa, padding_idx, dtype):
    indices = tokens(7, 60)
    _, (dweight,) = gradients(lambda w: embedding(indices, w, padding_idx), (random(7, 10, dtype=dtype),))
    _, (expected,) = gradients(lambda w: F.embedding(indices, w, padding_idx), (random(7, 10, dtype=dtype).double(),))
    assert torch.equal(dweight[padding_idx], torch.zeros(10, dtype=dtype))
    assert_close(dweight, expected)


@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout):
    indices, weight = tokens(20, 3, 50), random(20, 67)
    plain = gradients(lambda w: embedding(indices, w), (weight,))
    other = gradients(lambda w: embedding(layout(indices), w), (layout(weight),))
    assert torch.equal(plain[0][0], other[0][0])
    assert torch.equal(plain[1][0], other[1][0])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_gradient_spoils_its_element_and_no_other(isa, value):
    indices, dy = tokens(5, 40), random(40, 9)
    indices[13], dy[13, 4] = 2, value
    dweight = gradient(indices, dy, 5)
    assert dweight[2, 4].isnan() if value != value else dweight[2, 4] == value
    assert dweight.isfinite().sum() == 44


def test_tables_larger_than_the_cache_are_written_in_full(isa):
    indices, dy = tokens(30011, 2000), random(2000, 211)  # 24 MiB
    assert torch.equal(gradient(indices, dy, 30011), sums(indices, dy, 30011))


@for_dtypes
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_gradient_can_be_added_to_one_that_is_there(isa, padding_idx, dtype):
    indices, dy, before = tokens(9, 2, 100), random(2, 100, 33, dtype=dtype), random(11, 33, seed=3)
    dweight = before.clone()
    _sum_rows(dweight, indices, dy, -1 if padding_idx is None else padding_idx, accumulate=True)
    kept = indices.flatten() if padding_idx is None else indices[indices != padding_idx]
    rows = dy.view(-1, 33) if padding_idx is None else dy[indices != padding_idx]
    assert_close(dweight, before.double().index_add(0, kept, rows.double()))
    assert torch.equal(dweight[9:], before[9:])


@for_indices
@pytest.mark.parametrize("index", [7, -1, 2**31 - 1, -(2**31)])
def test_an_index_out_of_range_is_named(isa, index, index_dtype):
    indices = torch.tensor([[0, 6], [index, 8]]).to(index_dtype)
    with pytest.raises(IndexError, match=rf"expected indices in \[0, 7\).* got {index} at place 2;"):
        embedding(indices, random(7, 4))


def test_reference_passes_gradcheck():
    weight = random(5, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: embedding_reference(tokens(5, 7), w), weight)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"expected a weight of shape \[vocab, dim\], got \(4,\)"):
        embedding(tokens(4, 2), torch.ones(4))
    with pytest.raises(ValueError, match=r"expected indices of dtype int64 or int32, got torch.float32"):
        embedding(torch.ones(3), torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"expected padding_idx in \[-4, 4\).* got 4"):
        embedding(tokens(4, 2), torch.ones(4, 2), padding_idx=4)

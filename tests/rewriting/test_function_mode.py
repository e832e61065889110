"""Functions of torch inside a prepared forward: the same results, and torch's own where ours do not serve."""

import pytest
import torch
import torch.nn.functional as F

from fullstride.rewriting import function_mode
from fullstride.rewriting.function_mode import TABLE, FastFunctions

torch.manual_seed(0)
X, W, B = torch.randn(3, 4, 8), torch.randn(6, 8), torch.randn(6)
Q, MASK = torch.randn(2, 4, 5, 8), torch.randn(5, 5)
KV = torch.randn(2, 2, 5, 8)

SERIES, FILTERS = torch.randn(4, 40, 64).transpose(1, 2), torch.randn(32, 64, 5) / 64

SERVED = {
    "conv1d": (F.conv1d, (SERIES, FILTERS, torch.randn(32)), {"padding": 2}),
    "conv1d by tuples": (F.conv1d, (SERIES, FILTERS, None, (1,), (2,), (1,), 1), {}),
    "linear": (F.linear, (X, W, B), {}),
    "linear by name": (F.linear, (), {"input": X, "weight": W, "bias": B}),
    "attention": (F.scaled_dot_product_attention, (Q, Q, Q), {"is_causal": True}),
    "attention with a mask": (F.scaled_dot_product_attention, (Q, Q, Q), {"attn_mask": MASK, "scale": 0.3}),
    "grouped attention": (F.scaled_dot_product_attention, (Q, KV, KV), {"enable_gqa": True}),
    "layer_norm": (F.layer_norm, (X, (8,)), {}),
    "layer_norm with weights": (F.layer_norm, (X, [8]), {"weight": torch.randn(8), "bias": torch.randn(8)}),
    "torch.layer_norm": (torch.layer_norm, (X, (8,)), {}),
    "rms_norm": (F.rms_norm, (X, (8,)), {"eps": 1e-4}),
    "gelu": (F.gelu, (X,), {}),
    "gelu tanh": (F.gelu, (X,), {"approximate": "tanh"}),
    "silu": (F.silu, (X,), {}),
    "softmax": (F.softmax, (X,), {"dim": -1}),
    "softmax into fp32": (torch.softmax, (X.bfloat16(), 2), {"dtype": torch.float32}),
    "softmax of a tensor": (torch.Tensor.softmax, (X, -1), {}),
    "embedding": (F.embedding, (torch.tensor([[1, 5]]), W), {"padding_idx": 1}),
    "cross_entropy": (F.cross_entropy, (X[0], torch.tensor([0, 7, -100, 2])), {"label_smoothing": 0.1}),
}
LEFT = {
    "conv1d with time innermost": (F.conv1d, (SERIES.contiguous(), FILTERS), {}),
    "strided conv1d": (F.conv1d, (SERIES, FILTERS), {"stride": 2}),
    "conv1d of groups": (F.conv1d, (SERIES, FILTERS[:, :32]), {"groups": 2}),
    "layer_norm over two dimensions": (F.layer_norm, (X, (4, 8)), {}),
    "embedding with a norm": (F.embedding, (torch.tensor([1]), W.clone()), {"max_norm": 1.0}),
    "cross_entropy with weights": (F.cross_entropy, (X[0], torch.tensor([0, 7, 1, 2])), {"weight": torch.rand(8)}),
    "cross_entropy with probabilities": (F.cross_entropy, (X[0], torch.rand(4, 8)), {}),
    "cross_entropy over dimension 1": (F.cross_entropy, (X, torch.randint(0, 4, (3, 8))), {}),
    "silu in place": (F.silu, (X.clone(),), {"inplace": True}),
    "softmax over another dimension": (F.softmax, (X,), {"dim": 1}),
    "softmax into a tensor": (torch.softmax, (X, -1), {"out": torch.empty(3, 4, 8)}),
    "softmax into fp64": (torch.softmax, (X, -1), {"dtype": torch.float64}),
    "gelu of fp16": (F.gelu, (X.half(),), {}),
    "linear of a vector weight": (F.linear, (X, W[0]), {}),
    "attention of two dimensions": (F.scaled_dot_product_attention, (X[0], X[0], X[0]), {}),
}


def test_a_dense_view_of_a_convolution_is_one_as_with_torch():
    expected = F.conv1d(SERIES, FILTERS).view(4, -1)
    with FastFunctions():
        y = F.conv1d(SERIES, FILTERS)
        actual = y.view(4, -1)
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            y.view(4, -1, 7)
    assert not y.is_contiguous()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


VIEWS = {
    "by size": lambda y: y.view(size=(4, -1)),
    "as another": lambda y: y.view_as(torch.empty(4, 32 * 36)),
    "with one more dimension": lambda y: y.unsqueeze(1).view(4, -1),
    "of one sequence": lambda y: y[0].view(-1),
    "of other numbers": lambda y: y.view(dtype=torch.int32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_of_a_convolution_is_there_as_with_torch(name):
    with FastFunctions():
        y = F.conv1d(SERIES, FILTERS)
        actual = VIEWS[name](y)
    assert not y.is_contiguous()
    assert torch.equal(actual, VIEWS[name](y.contiguous()))


def run(function, args, kwargs, fast: bool):
    args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    if not fast:
        return function(*args, **kwargs)
    with FastFunctions():
        return function(*args, **kwargs)


@pytest.mark.parametrize("name", SERVED)
def test_a_function_we_have_is_answered_by_ours_with_the_same_result(name, monkeypatch):
    function, args, kwargs = SERVED[name]
    ours, answers = TABLE[function], []

    def answer(*args, **kwargs):
        answers.append(ours(*args, **kwargs))
        return answers[-1]

    monkeypatch.setitem(TABLE, function, answer)
    result = run(function, args, kwargs, fast=True)
    assert answers[0] is not NotImplemented
    torch.testing.assert_close(result, run(function, args, kwargs, fast=False), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", LEFT)
def test_what_ours_does_not_compute_is_left_to_torch(name):
    function, args, kwargs = LEFT[name]
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    assert TABLE[function](*copies, **kwargs) is NotImplemented
    assert torch.equal(run(function, args, kwargs, fast=True), run(function, args, kwargs, fast=False))


def test_dropout_is_ours_and_off_when_not_training():
    x = torch.ones(1000)
    with FastFunctions():
        assert set(F.dropout(x, 0.5).tolist()) == {0.0, 2.0}
        assert torch.equal(F.dropout(x, 0.5, training=False), x)


def test_attention_follows_autocast():
    with torch.autocast("cpu", torch.bfloat16), FastFunctions():
        assert F.scaled_dot_product_attention(Q, Q.bfloat16(), Q).dtype == torch.bfloat16


def test_softmax_keeps_bf16_under_autocast_as_torchs_does():
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.softmax(X.bfloat16(), dim=-1)
        with FastFunctions():
            result = F.softmax(X.bfloat16(), dim=-1)
    assert result.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=1 / 128, atol=0)


def test_tensor_subclasses_are_left_to_themselves():
    class Mine(torch.Tensor):
        pass

    assert function_mode.linear(X.as_subclass(Mine), W) is NotImplemented

"""That each kind of shape goes to the library chosen for it, and none to one that was excluded."""

import pytest
import torch

from fullstride.ops import linear_cross_entropy, products
from fullstride.ops.linear import linear
from fullstride.ops.products import SHAPES, backend, backends, exclude, set_backend, shape_of

FP32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture
def called(monkeypatch):
    """The backends that products were computed by, in order; every one of them multiplies as torch does."""
    names: list[str] = []

    def record(name):
        def multiply(a, b, out, bias=None, activation="none", pre=None, accumulate=False):
            names.append(name)
            result = a.float() @ b.float()
            out.copy_(out + result if accumulate else result)

        return multiply

    def onednn(a, b, bias):
        names.append("onednn")
        return (a.float() @ b.float()).to(a.dtype)

    monkeypatch.setattr(products, "multiply", record("native"))
    monkeypatch.setattr(products, "_onednn", onednn)
    monkeypatch.setattr(products, "built", lambda dtype: ("torch", "onednn", "native"))
    return names


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((1, 768, 768), "few rows"), ((256, 4096, 16383), "few rows"), ((257, 8, 8), "many rows"),
        ((100_000, 768, 768), "many rows"), ((1, 768, 16384), "wide head"), ((4096, 32000, 768), "wide head"),
    ],
)  # fmt: skip
def test_shapes_are_of_three_kinds(sizes, shape):
    assert shape_of(*sizes) == shape


def test_a_choice_is_for_one_kind_of_shape_or_for_all():
    set_backend(FP32, "native")
    set_backend(FP32, "torch", "wide head")
    assert [backend(FP32, shape) for shape in SHAPES] == ["native", "native", "torch"]
    assert backend(FP32) == "native"
    assert backend(BF16, "wide head") == "torch"
    with pytest.raises(ValueError, match="expected shape to be one of few rows, many rows, wide head; got 'tall'"):
        set_backend(FP32, "torch", "tall")


@pytest.mark.parametrize("rows", [12, 300])
def test_the_threeproducts_of_a_layer_share_the_choice_of_its_shape(called, rows):
    set_backend(FP32, "native", "few rows")
    set_backend(FP32, "onednn", "many rows")
    x, weight = torch.randn(rows, 20, requires_grad=True), torch.randn(18, 20, requires_grad=True)
    linear(x, weight).sum().backward()
    assert called == ["native" if rows == 12 else "onednn"] * 3


def test_a_gradient_that_sums_many_rows_of_a_small_weight_is_not_a_wide_head(called):
    set_backend(FP32, "onednn", "many rows")
    g, x = torch.randn(20000, 10), torch.randn(20000, 12)
    products.product(g.t(), x, sums_rows=True)
    assert called == ["onednn"]


def test_a_wide_head_has_a_choice_of_its_own(called, monkeypatch):
    monkeypatch.setattr(products, "LEAST_WIDE", 40)
    set_backend(FP32, "onednn", "wide head")
    set_backend(FP32, "native", "few rows")
    hidden, weight = torch.randn(9, 12, requires_grad=True), torch.randn(50, 12, requires_grad=True)
    loss = linear_cross_entropy.linear_cross_entropy(hidden, weight, torch.zeros(9, dtype=torch.int64))
    loss.backward()
    assert called == ["onednn"] * 3


def test_what_is_excluded_cannot_be_chosen_and_is_replaced(called):
    set_backend(BF16, "onednn", "wide head")
    exclude({(BF16, "torch"): "dies with SIGILL", (BF16, "onednn"): "dies with SIGILL"})
    assert backends(BF16) == ("native",)
    assert backends(FP32) == ("torch", "onednn", "native")
    assert [backend(BF16, shape) for shape in SHAPES] == ["native"] * 3
    assert [backend(FP32, shape) for shape in SHAPES] == ["torch"] * 3
    with pytest.raises(ValueError, match=r"'onednn' cannot run here in torch.bfloat16; take one of native"):
        set_backend(BF16, "onednn")
    exclude({})
    assert "torch" in backends(BF16)


def test_a_few_rows_are_not_given_to_torch_where_it_is_excluded(called):
    set_backend(FP32, "native")
    a, b = torch.randn(2, 5), torch.randn(5, 3)
    products.product(a, b)
    assert called == []
    exclude({(FP32, "torch"): "gives wrong numbers"})
    products.product(a, b)
    assert called == ["native"]


def test_where_all_are_excluded_a_product_is_an_error(called):
    exclude({(BF16, name): "dies with SIGILL" for name in ("torch", "onednn", "native")})
    x, weight = torch.randn(4, 5, dtype=BF16), torch.randn(3, 5, dtype=BF16)
    for call in (
        lambda: linear(x, weight),
        lambda: products.product(x, weight.t()),
        lambda: products.product_by("onednn", x, weight.t()),
        lambda: linear_cross_entropy.linear_cross_entropy(x, weight, torch.zeros(4, dtype=torch.int64)),
    ):
        with pytest.raises(RuntimeError, match=r"by '(torch|onednn)' is not to be used here: dies with SIGILL"):
            call()
    assert called == []


def test_asking_which_backends_there_are_multiplies_nothing(monkeypatch):
    def die(*arguments):
        raise AssertionError("a product in the user's process")

    monkeypatch.setattr(products, "_onednn", die)
    assert "torch" in backends(BF16)

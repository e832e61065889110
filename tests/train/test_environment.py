"""That a run multiplies by what it began with, as recordings of all times tell it."""

import pytest
import torch

from fullstride.ops import products
from fullstride.train import environment

NAMES = [products.built(dtype) for dtype in (torch.float32, torch.bfloat16)]


def recorded():
    return {name: environment._backends(getattr(torch, name)) for name in ("float32", "bfloat16")}


def test_choices_are_recorded_by_shape_and_restored():
    products.set_backend(torch.float32, "native", "wide head")
    saved = recorded()
    assert saved["float32"] == {"few rows": "torch", "many rows": "torch", "wide head": "native"}
    products.set_backend(torch.float32, "torch")
    environment.use_products(saved)
    assert recorded() == saved


@pytest.mark.parametrize("name", NAMES[0])
def test_a_recording_without_shapes_goes_on_working(name):
    saved = {"float32": name, "bfloat16": "torch"}
    environment.use_products(saved)
    assert {products.backend(torch.float32, shape) for shape in products.SHAPES} == {name}
    assert recorded() == saved
    assert environment.differences({"products": saved}, {"products": recorded()}) == []


def test_what_is_excluded_or_unknown_is_not_restored():
    products.exclude({(torch.bfloat16, "native"): "dies with SIGILL"})
    saved = {"float32": {"few rows": "native", "tall": "native"}, "bfloat16": "native"}
    environment.use_products(saved)
    assert products.backend(torch.float32, "few rows") == "native"
    assert products.backend(torch.bfloat16) == "torch"
    [difference] = environment.differences({"products": saved}, {"products": recorded()})
    assert difference.startswith("products was ")

import torch

from fullstride.backends import square_products


def test_products_that_torch_lacks_are_left_out(monkeypatch):
    def lacking(a, b):
        raise NotImplementedError

    products = {"fp32": square_products._PRODUCTS["fp32"], "int8": (torch.int8, lacking)}
    monkeypatch.setattr(square_products, "_PRODUCTS", products)
    monkeypatch.setattr(square_products, "_LAST_SIZE", 256)
    rates = square_products.rates(seconds=0)
    assert list(rates) == ["fp32"]
    assert rates["fp32"] > 0

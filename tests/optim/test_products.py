"""What a step costs with the first layers frozen, against what torch counts."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fullstride.models import llama
from fullstride.optim._products import costs_by_size
from fullstride.optim._stages import places_of

from .freezers import by_norms, mlp


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.wider = nn.ConvTranspose2d(8, 8, 3, stride=2)
        self.second = nn.Conv2d(8, 16, 3, stride=2)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.second(self.wider(self.first(x).relu())).relu().mean((2, 3)))


class Residual(nn.Module):
    """Layers behind norms, whose weights need a gradient of their own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class NoAttention(llama.Llama):
    """Attention's own products, which have no weights, are left out."""

    def __init__(self, tied):
        super().__init__(vocabulary=32, width=16, layers=3, heads=2, kv_heads=2, hidden=24, context=8, tied=tied)
        for layer in self.layers:
            layer.attention.forward = lambda x, *_, a=layer.attention: a.output(a.query(x) + a.key(x) + a.value(x))


MODELS: dict[str, Any] = {
    "mlp": (mlp, lambda: torch.randn(16, 8)),
    "convolutions": (Convolutions, lambda: torch.randn(2, 3, 8, 8)),
    "residual": (Residual, lambda: torch.randn(4, 5, 16)),
    "tied language model": (lambda: NoAttention(True), lambda: torch.randint(32, (2, 8))),
    "language model": (lambda: NoAttention(False), lambda: torch.randint(32, (2, 8))),
}


def counted(model, x):
    model.zero_grad()
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", MODELS)
def test_costs_are_what_torch_counts_with_each_number_of_frozen_stages(name):
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), inputs()
    freezer = by_norms(model)
    model(x).sum().backward()
    freezer.step()
    for k in range(len(freezer._watched)):
        assert freezer._costs[k] == counted(model, x), k
        freezer._freeze_next()


def test_without_a_forward_pass_a_frozen_layer_saves_two_thirds_of_what_its_size_costs():
    model = mlp(num_layers=2)
    freezer = by_norms(model, layers=[model[0], model[2]])
    costs = costs_by_size(places_of(model, [watched.stage for watched in freezer._watched]))
    assert costs == [2.0 * 3 * 144, 2.0 * 4 * 72, 2.0 * 144]
    assert freezer._costs == costs


@pytest.mark.parametrize("reentrant", [False, True])
def test_products_in_a_checkpoint_count_once(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def forward(self, x):
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model, x = Checkpointed(), torch.randn(16, 8, requires_grad=True)
    freezer = by_norms(model)
    F.mse_loss(model(x), torch.zeros(16, 8)).backward()
    freezer.step()
    assert freezer._costs[0] == 4 * 3 * 2 * 16 * 64

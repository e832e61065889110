"""The freezer of stock's side: plain torch, and the same layers at the same steps as ours."""

import itertools

import pytest
import torch
from torch import nn

from fullstride.bench.compare.folder import Folder
from fullstride.bench.compare.plain_freezing import Freezer
from fullstride.bench.step.side import Training
from fullstride.optim import DynamicFreezer
from fullstride.recipes.config import Freeze

from .tiny import CONFIG, case

WIDTHS = (8, 24, 16, 12, 4)
OPTIONS = {"patience": 3, "min_active": 1, "thaw_every": None, "thaw_on_rise": None, "smoothing": 0.5}
STAGES = [{"layers": [str(i)], "parameters": [f"{i}.weight", f"{i}.bias"], "detach": []} for i in range(4)]


def steps(model, freezer, num_steps=60, lr=0.1):
    """What is frozen after each step of plain SGD, whose rate falls."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(5)
    target = torch.randn(16, 4, generator=generator)
    found = []
    for number in range(num_steps):
        optimizer.param_groups[0]["lr"] = lr / (1 + number)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(torch.randn(16, 8, generator=generator)), target)
        loss.backward()
        freezer.step(loss.item())
        optimizer.step()
        found.append(list(freezer.report().frozen_layers))
    return found


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 4))


@pytest.mark.parametrize(
    "changes",
    [
        {"criterion": "slowed", "threshold": 0.3},
        {"criterion": "slowed", "threshold": 0.5, "min_active": 2, "thaw_every": 20},
        {"criterion": "below", "threshold": 0.8, "patience": 2},
        {"criterion": "below", "threshold": 0.9, "patience": 1, "thaw_every": 7},
        {"criterion": "settled", "threshold": 0.1},
        {"criterion": "settled", "threshold": 0.1, "thaw_on_rise": 0.02},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_it_freezes_and_thaws_the_layers_that_ours_does_at_the_same_steps(changes):
    options = OPTIONS | changes
    ours, theirs = network(), network()
    expected = steps(ours, DynamicFreezer(ours, **options))
    assert steps(theirs, Freezer(theirs, STAGES, **options)) == expected
    assert any(expected)
    thaws = bool(options["thaw_every"] or options["thaw_on_rise"])
    assert any(len(now) < len(before) for before, now in itertools.pairwise(expected)) == thaws


def test_what_is_frozen_neither_moves_nor_has_a_gradient_until_it_thaws():
    model = network()
    freezer = Freezer(model, STAGES, criterion="slowed", threshold=1e9, **OPTIONS)
    steps(model, freezer, 4)
    assert freezer.num_frozen == 3
    before = [p.clone() for p in model[:3].parameters()]
    steps(model, freezer, 2)
    assert all(map(torch.equal, before, model[:3].parameters()))
    assert all(p.grad is None and not p.requires_grad for p in model[:3].parameters())
    freezer.thaw()
    assert all(p.requires_grad for p in model.parameters())
    assert freezer.report().frozen_layers == []


def test_what_the_user_froze_is_not_thawed():
    model = network()
    model[0].bias.requires_grad_(False)
    freezer = Freezer(model, STAGES, criterion="slowed", threshold=1e9, **OPTIONS)
    steps(model, freezer, 4)
    freezer.thaw()
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["0.bias"]


class Tied(nn.Module):
    """The last layer uses the weight of the first one."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


def test_a_layer_with_a_weight_of_a_later_one_is_detached():
    stages = [
        {"layers": ["first", "middle"], "parameters": ["middle.weight", "middle.bias"], "detach": ["first"]},
        {"layers": ["last"], "parameters": ["first.weight"], "detach": []},
    ]
    model = Tied()
    freezer = Freezer(model, stages, criterion="slowed", threshold=1e9, **OPTIONS)
    freezer.freeze_next()
    assert not model.first(torch.ones(2, 8)).requires_grad
    model(torch.ones(2, 8)).sum().backward()
    assert model.last.weight.grad is not None
    freezer.thaw()
    assert model.first(torch.ones(2, 8)).requires_grad


def test_what_was_compiled_before_is_compiled_anew(monkeypatch):
    resets = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
    for compiled in (False, True):
        freezer = Freezer(network(), STAGES, criterion="slowed", threshold=1e9, compiled=compiled, **OPTIONS)
        freezer.freeze_next()
        freezer.thaw()
        assert len(resets) == (2 if compiled else 0)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("criterion", ["slowed", "below", "settled"])
def test_both_sides_of_a_recipe_freeze_alike_and_go_on_with_the_same_losses(criterion, tmp_path):
    wish = Freeze(enabled=True, criterion=criterion, threshold=0.9, patience=3, min_active=1, smoothing=0.5)
    config = CONFIG.replace(widths=WIDTHS, freeze=wish, steps=40, optimizer={"lr": 0.2}, schedule={"warmup": 2})
    folder = Folder(tmp_path, config)
    folder.provide(40)
    ours = Training(case(folder).config(fullstride="fp32")).run(40)
    stock = Training(case(folder).config()).run(40)
    assert ours["frozen"]
    assert stock["frozen"] == ours["frozen"]
    assert stock["losses"] == pytest.approx(ours["losses"], rel=1e-4)


def test_a_recipe_that_does_not_freeze_has_no_freezer(tmp_path):
    assert Training(case(Folder(tmp_path, CONFIG)).config()).freezer is None

"""Small models and freezers at a chosen point of a run, which the tests of freezing and of its stages share."""

import torch
from torch import nn

from fullstride.optim.freezing import DynamicFreezer


def mlp(num_layers=4, width=8, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*(layer for _ in range(num_layers) for layer in (nn.Linear(width, width), nn.Tanh())))


def batch(step=0, width=8):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, width, generator=generator), torch.randn(16, width, generator=generator)


def by_norms(model, **options):
    """A freezer that looks at each step's gradient norm as it is: what give_norms gives is all that it sees."""
    defaults = {"criterion": "settled", "threshold": 0.01, "smoothing": 0.0, "min_active": 1}
    return DynamicFreezer(model, **defaults | options)


def give_norms(freezer, *norms):
    """Gradients of these norms for the stages, the first one of each parameter list carrying it."""
    for watched, norm in zip(freezer._watched, norms, strict=True):
        for parameter in watched.parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        if watched.parameters[0].requires_grad:
            watched.parameters[0].grad.view(-1)[0] = norm


def traced(model, x=None, **options):
    """A freezer that has seen a forward pass and one step of it, all norms 1."""
    freezer = by_norms(model, **options)
    model(batch()[0] if x is None else x)
    freezer._end_trace(freezer._trace)
    give_norms(freezer, *[1.0] * len(freezer._watched))
    freezer.step()
    return freezer


def layers_of(freezer):
    return [watched.stage.layers for watched in freezer._watched]


def parameters_of(freezer):
    return [watched.stage.parameters for watched in freezer._watched]


def frozen_by(model, num_frozen, x=None):
    freezer = traced(model, x, patience=1, min_active=1)
    give_norms(freezer, *[1.0] * num_frozen, *[2.0] * (len(freezer._watched) - num_frozen))
    assert freezer.step()
    assert len(freezer._frozen) == num_frozen
    return freezer

"""SGD against torch.optim over 100 steps."""

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from fullstride.optim import SGD

from .training import assert_close, parameters, run

OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True, "maximize": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
def test_a_hundred_steps_follow_torch(options):
    ours, torchs = parameters(), parameters()
    run(SGD(ours, lr=1e-2, **options), ours, range(100))
    run(torch.optim.SGD(torchs, lr=1e-2, **options), torchs, range(100))
    assert_close(ours, torchs, tolerance=1e-4 if options.get("maximize") else 1e-5)


def test_a_one_cycle_schedule_changes_the_momentum():
    ours, torchs = parameters(), parameters()
    for optimizer, params in ((SGD(ours, momentum=0.9), ours), (torch.optim.SGD(torchs, momentum=0.9), torchs)):
        run(optimizer, params, range(100), OneCycleLR(optimizer, max_lr=0.05, total_steps=101))
    assert_close(ours, torchs)


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_momentum_switched_on_and_off_later_follows_torch(dampening):
    ours, torchs = parameters(), parameters()
    for optimizer, params in ((SGD(ours, lr=1e-2), ours), (torch.optim.SGD(torchs, lr=1e-2), torchs)):
        for momentum, steps in ((0.0, range(5)), (0.9, range(5, 10)), (0.0, range(10, 15)), (0.5, range(15, 20))):
            optimizer.param_groups[0].update(momentum=momentum, dampening=dampening)
            run(optimizer, params, steps)
    assert_close(ours, torchs)


def test_momentum_begins_with_the_first_gradient_even_after_loading():
    ours, torchs = parameters(), parameters()
    for optimizer, params in ((SGD(ours, lr=1e-2), ours), (torch.optim.SGD(torchs, lr=1e-2), torchs)):
        run(optimizer, params, range(2))
        optimizer.param_groups[0].update(momentum=0.9, dampening=0.5)
        optimizer.zero_grad()
        run(optimizer, params[1:], range(2, 5))  # params[0] may have a buffer now, but has had no gradient for it
        optimizer.load_state_dict(optimizer.state_dict())
        run(optimizer, params, range(5, 10))
    assert_close(ours, torchs)


def test_without_momentum_there_is_no_state_but_the_step():
    params = parameters()
    optimizer = SGD(params, lr=1e-2)
    run(optimizer, params, range(3))
    assert list(optimizer.state[params[0]]) == ["step"]


def test_nesterov_without_momentum_is_told():
    with pytest.raises(ValueError, match=r"momentum above 0 and dampening 0 with Nesterov, got momentum=0.0"):
        SGD(parameters(), nesterov=True)

"""torch's optimizers into ours and back, with state, groups, hooks and schedulers."""

import copy

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from fullstride.optim import SGD, Adam, AdamW, Lamb, Lookahead, from_torch, to_torch

from .training import assert_close, assert_equal, parameters, run, set_gradients, split

KINDS = {
    "adamw": (torch.optim.AdamW, AdamW, {"lr": 1e-2}),
    "adamw-tensor-lr": (torch.optim.AdamW, AdamW, {"lr": torch.tensor(1e-2)}),
    "adamw-foreach": (torch.optim.AdamW, AdamW, {"lr": 1e-2, "foreach": True}),
    "adamw-fused": (torch.optim.AdamW, AdamW, {"lr": 1e-2, "fused": True}),
    "adam-amsgrad": (torch.optim.Adam, Adam, {"lr": 1e-2, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "sgd": (torch.optim.SGD, SGD, {"lr": 1e-2}),
    "sgd-momentum": (torch.optim.SGD, SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    "sgd-nesterov": (torch.optim.SGD, SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
}
for_kinds = pytest.mark.parametrize(("stock", "ours", "options"), KINDS.values(), ids=KINDS)


def groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 3e-2, "weight_decay": 0.2}]


@for_kinds
@pytest.mark.parametrize("steps_before", [0, 10])
def test_a_converted_run_follows_torch_and_so_does_the_way_back(stock, ours, options, steps_before):
    params, expected = parameters(), parameters()
    optimizer = stock(groups(params), **copy.deepcopy(options))
    run(stock(groups(expected), **copy.deepcopy(options)), expected, range(steps_before + 40))
    run(optimizer, params, range(steps_before))
    fast = from_torch(optimizer)
    assert type(fast) is ours
    run(fast, params, range(steps_before, steps_before + 20))
    back = to_torch(fast)
    assert type(back) is stock
    run(back, params, range(steps_before + 20, steps_before + 40))
    assert_close(params, expected)


def test_the_same_object_comes_back():
    optimizer = torch.optim.AdamW(parameters())
    groups_before = optimizer.param_groups
    assert from_torch(optimizer) is optimizer
    assert optimizer.param_groups is groups_before
    assert optimizer.to_torch() is optimizer


@pytest.mark.parametrize("used_before", [0, 4])
def test_a_scheduler_made_before_goes_on(used_before):
    params, expected = parameters(), parameters()
    optimizer, other = (torch.optim.AdamW(p, lr=1e-4) for p in (params, expected))
    schedule, reference = (OneCycleLR(o, max_lr=0.05, total_steps=41) for o in (optimizer, other))
    run(optimizer, params, range(used_before), schedule)
    fast = from_torch(optimizer)
    run(fast, params, range(used_before, 20), schedule)
    run(to_torch(fast), params, range(20, 40), schedule)
    run(other, expected, range(40), reference)
    assert schedule.get_last_lr() == reference.get_last_lr()
    assert_close(params, expected)


def test_a_scheduler_made_after_works():
    params, expected = parameters(), parameters()
    optimizer, other = (torch.optim.AdamW(p, lr=1e-2) for p in (params, expected))
    run(optimizer, params, range(5))
    fast = from_torch(optimizer)
    run(fast, params, range(5, 30), CosineAnnealingLR(fast, 25))
    run(other, expected, range(5))
    run(other, expected, range(5, 30), CosineAnnealingLR(other, 25))
    assert_close(params, expected)


def test_hooks_registered_before_go_on():
    params, calls = parameters(), []
    optimizer = torch.optim.AdamW(params)
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run(from_torch(optimizer), params, range(2))
    assert calls == ["after", "after"]


@pytest.mark.parametrize("state_precision", ["bf16", "8bit"])
def test_states_are_converted_to_the_precision_that_is_asked_for(state_precision):
    params, expected = parameters(), parameters()
    optimizer, other = (torch.optim.AdamW(p, lr=1e-2) for p in (params, expected))
    run(optimizer, params, range(20))
    fast = from_torch(optimizer, state_precision=state_precision, clip=5.0, seed=3)
    run(fast, params, range(20, 40))
    state = fast.state[params[0]]
    assert state["exp_avg"].dtype is {"bf16": torch.bfloat16, "8bit": torch.uint8}[state_precision]
    assert ("exp_avg_scale" in state) == (state_precision == "8bit")
    assert (fast.clip, fast.seed) == (5.0, 3)
    run(to_torch(fast), params, range(40, 60))
    assert set(fast.state[params[0]]) == {"step", "exp_avg", "exp_avg_sq"}
    for step in range(60):
        run(other, expected, [step]) if not 20 <= step < 40 else clipped(other, expected, step)
    assert_close(params, expected, tolerance=0.1)


def clipped(optimizer, params, step):
    set_gradients(params, step)
    torch.nn.utils.clip_grad_norm_(params, 5.0)
    optimizer.step()


def test_bf16_states_of_bf16_parameters_become_fp32():
    params = parameters(dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(params, lr=1e-2)
    run(optimizer, params, range(3))
    expected = optimizer.state[params[0]]["exp_avg"].float()
    fast = from_torch(optimizer)
    fast.param_groups[0]["betas"] = (1 - 1e-12, 0.999)
    run(fast, params, range(1))
    assert fast.state[params[0]]["exp_avg"].dtype is torch.float32
    torch.testing.assert_close(fast.state[params[0]]["exp_avg"], expected, rtol=1e-5, atol=1e-6)


def test_lookahead_is_converted_inside_with_its_slow_weights():
    params, expected = parameters(), parameters()
    optimizer, other = (Lookahead(torch.optim.AdamW(p, lr=1e-2)) for p in (params, expected))
    run(optimizer, params, range(7))
    fast = from_torch(optimizer, clip=100.0)
    assert fast is optimizer
    assert type(fast.optimizer) is AdamW
    assert not fast.slow
    run(fast, params, range(7, 20))
    run(other, expected, range(20))
    assert_close(params, expected)


def test_the_gradient_scaler_of_torch_goes_on_with_a_converted_fused_optimizer():
    params, expected = parameters(), parameters()
    optimizer, other = (torch.optim.AdamW(p, lr=1e-2, fused=True) for p in (params, expected))
    for each, target in ((from_torch(optimizer), params), (other, expected)):
        scaler = torch.amp.GradScaler("cpu")
        for step in range(5):
            set_gradients(target, step, scale=scaler.scale(torch.ones(())).item())
            scaler.step(each)
            scaler.update()
    assert_close(params, expected)
    assert to_torch(optimizer).param_groups[0]["fused"]
    run(optimizer, params, range(5, 10))
    run(other, expected, range(5, 10))
    assert_close(params, expected)


def test_ours_comes_back_as_it_is():
    optimizer = AdamW(parameters(), state_precision="8bit")
    assert from_torch(optimizer, clip=2.0) is optimizer
    assert (optimizer.clip, optimizer.state_precision) == (2.0, "8bit")
    with pytest.raises(ValueError, match="expected an optimizer with states in bf16, got ours with 8bit"):
        from_torch(optimizer, state_precision="bf16")


def test_a_converted_optimizer_is_saved_and_copied():
    params = parameters()
    optimizer = torch.optim.AdamW(params, lr=1e-2)
    CosineAnnealingLR(optimizer, 10)
    fast = from_torch(optimizer, state_precision="8bit")
    run(fast, params, range(3))
    others, other = copy.deepcopy((params, fast))
    third = copy.deepcopy(others)
    loaded = AdamW(third, lr=1.0, state_precision="8bit")
    loaded.load_state_dict(fast.state_dict())
    for each, target in ((fast, params), (other, others), (loaded, third)):
        run(each, target, range(3, 6))
    assert_equal(others, params)
    assert_equal(third, params)


class OwnAdamW(torch.optim.AdamW):
    pass


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: torch.optim.Adagrad(p), TypeError, "expected torch.optim's AdamW, Adam or SGD, got .*Adagrad"),
        (lambda p: OwnAdamW(p), TypeError, "got .*OwnAdamW"),
        (lambda p: torch.optim.AdamW(p, differentiable=True), ValueError, "differentiable=True"),
        (lambda p: torch.optim.AdamW([{"params": p}, {"params": []}]), ValueError, "got none in group 1"),
        (lambda p: torch.optim.AdamW([q.detach().double() for q in p]), ValueError, "got torch.float64"),
    ],
)
def test_what_cannot_be_converted_is_told_and_left_alone(make, error, message):
    optimizer = make(parameters())
    kind = type(optimizer)
    with pytest.raises(error, match=message):
        from_torch(optimizer)
    assert type(optimizer) is kind


@pytest.mark.parametrize("options", [{"state_precision": "4bit"}, {"clip": -1.0}])
def test_bad_options_are_told_and_the_optimizer_left_alone(options):
    optimizer = torch.optim.AdamW(parameters())
    with pytest.raises(ValueError, match=f"expected {next(iter(options))}"):
        from_torch(optimizer, **options)
    assert type(optimizer) is torch.optim.AdamW


def test_a_step_replaced_on_the_object_is_told():
    optimizer = torch.optim.AdamW(parameters())
    optimizer.step = lambda closure=None: None  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="replaced on the object"):
        from_torch(optimizer)


def test_what_torch_has_not_cannot_go_back():
    with pytest.raises(TypeError, match="got Lamb"):
        Lamb(parameters()).to_torch()
    optimizer = AdamW(parameters())
    Lookahead(optimizer)
    with pytest.raises(ValueError, match="without Lookahead"):
        optimizer.to_torch()
    params = parameters()
    lower_halves = split(params)
    optimizer = AdamW(params)
    optimizer.use_split(lower_halves)
    with pytest.raises(ValueError, match="got 6 split ones"):
        optimizer.to_torch()

"""AdamW and Adam against torch.optim over 100 steps, per group and under schedulers; what bad calls are told."""

import weakref

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from fullstride import _native
from fullstride.optim import SGD, Adam, AdamW, Lamb

from .training import assert_close, assert_equal, parameters, run, set_gradients

OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"amsgrad": True},
    {"maximize": True, "weight_decay": 0.1},
    {"betas": (0.8, 0.95), "eps": 1e-4},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_a_hundred_steps_follow_torch(name, options):
    ours, torchs = parameters(), parameters()
    run({"AdamW": AdamW, "Adam": Adam}[name](ours, lr=1e-2, **options), ours, range(100))
    run(getattr(torch.optim, name)(torchs, lr=1e-2, **options), torchs, range(100))
    assert_close(ours, torchs)


def test_a_hundred_steps_follow_torch_without_the_library(monkeypatch):
    monkeypatch.setattr(_native, "available", lambda: False)
    ours, torchs = parameters(), parameters()
    run(AdamW(ours, lr=1e-2, clip=1.0), ours, range(20))
    optimizer = torch.optim.AdamW(torchs, lr=1e-2)
    for step in range(20):
        set_gradients(torchs, step)
        torch.nn.utils.clip_grad_norm_(torchs, 1.0)
        optimizer.step()
    assert_close(ours, torchs)


def test_groups_have_their_own_options():
    def groups(params):
        return [{"params": params[:2], "lr": 1e-3, "amsgrad": True}, {"params": params[2:], "weight_decay": 0.3}]

    ours, torchs = parameters(), parameters()
    run(AdamW(groups(ours), lr=1e-2), ours, range(100))
    run(torch.optim.AdamW(groups(torchs), lr=1e-2), torchs, range(100))
    assert_close(ours, torchs)


def test_a_one_cycle_schedule_changes_lr_and_betas():
    ours, torchs = parameters(), parameters()
    for optimizer, params in ((AdamW(ours), ours), (torch.optim.AdamW(torchs, lr=1e-4), torchs)):
        run(optimizer, params, range(100), OneCycleLR(optimizer, max_lr=0.05, total_steps=101))
    assert_close(ours, torchs)


def test_a_tensor_as_learning_rate_follows_its_scheduler():
    ours, torchs = parameters(), parameters()
    fast, stock = AdamW(ours, lr=torch.tensor(1e-2)), torch.optim.AdamW(torchs, lr=1e-2)
    run(fast, ours, range(30), CosineAnnealingLR(fast, 30))
    run(stock, torchs, range(30), CosineAnnealingLR(stock, 30))
    assert_close(ours, torchs)


def test_an_option_changed_in_the_group_counts_from_the_next_step():
    ours, torchs = parameters(), parameters()
    for optimizer, params in ((AdamW(ours, lr=1e-2), ours), (torch.optim.AdamW(torchs, lr=1e-2), torchs)):
        run(optimizer, params, range(10))
        optimizer.param_groups[0].update(lr=0.1, weight_decay=0.5, betas=(0.5, 0.9))
        run(optimizer, params, range(10, 20))
    assert_close(ours, torchs)


def test_parameters_without_a_gradient_are_skipped_and_have_no_state():
    params = parameters()
    optimizer = AdamW(params, lr=0.1)
    before = [p.detach().clone() for p in params]
    for step in range(3):
        set_gradients(params[:2], step)
        optimizer.step()
    assert_equal(params[2:], before[2:])
    assert not torch.equal(params[0], before[0])
    assert set(optimizer.state) == set(params[:2])


def test_a_parameter_that_rests_keeps_its_own_count_of_steps():
    ours, torchs = parameters(), parameters()
    for optimizer, params in ((AdamW(ours, lr=1e-2), ours), (torch.optim.AdamW(torchs, lr=1e-2), torchs)):
        for step in range(20):
            set_gradients(params, step)
            if step % 3:
                params[0].grad = None
            if step < 7:
                params[1].grad = None
            optimizer.step()
    assert_close(ours, torchs)
    assert ours[0].grad is None


def test_a_closure_is_called_with_gradients_enabled_and_its_value_returned():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() == 3.0
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9 - 0.1 * 0.01), rtol=1e-6, atol=0)


def test_step_hooks_run():
    params, calls = parameters(), []
    optimizer = AdamW(params)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run(optimizer, params, range(1))
    assert calls == ["before", "after"]


def test_a_group_added_later_is_stepped():
    ours, torchs = parameters(), parameters()
    for optimizer, params in (
        (AdamW(ours[:3], lr=1e-2), ours),
        (torch.optim.AdamW(torchs[:3], lr=1e-2), torchs),
    ):
        run(optimizer, params, range(5))
        optimizer.add_param_group({"params": params[3:], "lr": 0.1})
        run(optimizer, params, range(5, 15))
    assert_close(ours, torchs)


def test_named_parameters_are_taken():
    model = torch.nn.Linear(3, 2)
    optimizer = AdamW(model.named_parameters(), lr=1e-2)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    run(optimizer, list(model.parameters()), range(2))
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


def test_a_parameter_appended_to_a_group_is_stepped():
    ours, torchs = parameters(), parameters()
    for optimizer, params in (
        (AdamW(ours[:3], lr=1e-2), ours),
        (torch.optim.AdamW(torchs[:3], lr=1e-2), torchs),
    ):
        run(optimizer, params, range(5))
        optimizer.param_groups[0]["params"].extend(params[3:])
        run(optimizer, params, range(5, 15))
    assert_close(ours, torchs)


@pytest.mark.parametrize("layout", ["channels_last", "transposed"])
@pytest.mark.parametrize("state_precision", ["fp32", "8bit"])
def test_dense_parameters_in_another_order_are_stepped_in_place(layout, state_precision):
    def parameter():
        x = torch.randn(6, 5, 4, 3, generator=torch.Generator().manual_seed(0))
        return torch.nn.Parameter(x.to(memory_format=torch.channels_last) if layout == "channels_last" else x.mT)

    ours, torchs = [parameter()], [parameter()]
    optimizer = AdamW(ours, lr=1e-2, state_precision=state_precision)
    run(optimizer, ours, range(20))
    run(torch.optim.AdamW(torchs, lr=1e-2), torchs, range(20))
    assert ours[0].stride() == torchs[0].stride() == optimizer.state[ours[0]]["exp_avg"].stride()
    assert_close(ours, torchs, tolerance=1e-5 if state_precision == "fp32" else 0.05)


def test_a_weight_that_moved_is_followed():
    ours, torchs = parameters(), parameters()
    for optimizer, params in ((AdamW(ours, lr=1e-2), ours), (torch.optim.AdamW(torchs, lr=1e-2), torchs)):
        run(optimizer, params, range(5))
        params[0].data = params[0].data.clone()
        run(optimizer, params, range(5, 10))
    assert_close(ours, torchs)


@pytest.mark.parametrize("state_precision", ["bf16", "8bit"])
def test_narrow_states_stay_near_fp32(state_precision):
    ours, torchs = parameters(), parameters()
    optimizer = AdamW(ours, lr=1e-2, state_precision=state_precision)
    run(optimizer, ours, range(100))
    run(torch.optim.AdamW(torchs, lr=1e-2), torchs, range(100))
    dtype = {"bf16": torch.bfloat16, "8bit": torch.uint8}[state_precision]
    assert optimizer.state[ours[0]]["exp_avg"].dtype is dtype
    assert_close(ours, torchs, tolerance=0.1)  # they moved by up to 1
    for a, b in zip(ours, torchs, strict=True):
        assert (a - b).norm() <= 0.05 * (b - b.mean()).norm() + 0.05


def test_a_bf16_parameter_moves_although_each_step_is_below_its_rounding():
    p = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = AdamW([p], lr=1e-4, weight_decay=0.0)
    for _ in range(100):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert p.float().mean().item() == pytest.approx(0.99, abs=1e-3)  # round-to-nearest would stay at 1


def test_the_seed_decides_the_rounding():
    def trained(seed):
        params = parameters(dtype=torch.bfloat16)
        run(AdamW(params, lr=1e-4, seed=seed), params, range(5))
        return params

    assert_equal(trained(1), trained(1))
    assert not torch.equal(trained(1)[0], trained(2)[0])


def test_a_compiled_training_step_calls_it_as_it_is():
    def train(compiled):
        p = torch.nn.Parameter(torch.ones(5))
        optimizer = AdamW([p], lr=1e-2)

        def step(x):
            optimizer.zero_grad()
            (p * x).square().sum().backward()
            optimizer.step()

        step = torch.compile(step, backend="eager") if compiled else step
        for i in range(3):
            step(torch.full((5,), 1.0 + i))
        return p

    assert torch.equal(train(compiled=True), train(compiled=False))


def test_gradients_are_not_held_after_the_step():
    params = parameters()
    optimizer = AdamW(params)
    run(optimizer, params, range(1))
    gradient = weakref.ref(params[0].grad)
    optimizer.zero_grad()
    assert gradient() is None


@pytest.mark.parametrize("kind", [AdamW, Adam, SGD, Lamb])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [torch.nn.Parameter(torch.ones(3).double())], r"fp32 or bf16 .*, got torch.float64.*float\(\)"),
        (lambda: [torch.nn.Parameter(torch.ones(3).half())], "got torch.float16.*autocast"),
        (lambda: [torch.nn.Parameter(torch.ones(3) * 1j)], "got torch.complex64.*leave it out"),
        (lambda: [torch.nn.Parameter(torch.ones(3).long(), requires_grad=False)], "got torch.int64.*leave it out"),
        (lambda: [torch.nn.Parameter(torch.ones(3, device="meta"))], "dense CPU parameters, got .* on meta"),
        (lambda: [torch.nn.Parameter(torch.ones(6)[::2])], r"fill their memory, got shape \(3,\) with strides \(2,\)"),
        (lambda: [torch.nn.Parameter(torch.ones(3).expand(2, 3))], "fill their memory"),
        (lambda: [{"params": []}], "expected parameters in group 0, got none"),
        (lambda: [torch.nn.Parameter(torch.ones(3))] * 2, "expected each parameter once"),
    ],
)
def test_what_cannot_be_stepped_is_told(kind, make, message):
    with pytest.raises(ValueError, match=message):
        kind(make())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "expected lr of at least 0, got -1.0"),
        ({"betas": (0.9, 1.0)}, r"expected two betas from 0 to below 1, got \(0.9, 1.0\)"),
        ({"eps": -1e-8}, "expected eps"),
        ({"weight_decay": -0.1}, "expected weight_decay"),
        ({"clip": 0.0}, "expected clip above 0, or None for no clipping, got 0.0"),
        ({"state_precision": "int8"}, "expected state_precision .*, got 'int8'"),
    ],
)
def test_bad_options_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        AdamW(parameters(), **options)


def test_bad_options_of_a_group_are_told():
    with pytest.raises(ValueError, match="expected lr of at least 0"):
        AdamW([{"params": parameters(), "lr": -1.0}])


def test_a_sparse_gradient_is_told():
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = AdamW(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match=r"expected dense CPU gradients, got torch.sparse_coo"):
        optimizer.step()


def test_a_parameter_in_two_groups_is_told():
    params = parameters()
    with pytest.raises(ValueError, match="more than one parameter group"):
        AdamW([{"params": params}, {"params": params[:1]}])

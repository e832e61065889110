"""Saving, loading, copying: formats stay, runs continue to the bit, and torch's states are taken and given."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fullstride.optim import SGD, Adam, AdamW, Lamb, Lookahead

from .training import assert_close, assert_equal, parameters, run, set_gradients, split, whole

for_precisions = pytest.mark.parametrize("state_precision", ["fp32", "bf16", "8bit"])
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}
KINDS: dict[str, Callable[..., Any]] = {
    "adamw": lambda params, **options: AdamW(params, lr=1e-2, **options),
    "amsgrad": lambda params, **options: Adam(params, lr=1e-2, amsgrad=True, **options),
    "sgd": lambda params, **options: SGD(params, lr=1e-2, momentum=0.9, **options),
    "lamb": lambda params, **options: Lamb(params, **options),
    "lookahead": lambda params, **options: Lookahead(AdamW(params, lr=1e-2, **options), k=3),
}


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)  # with weights_only


@for_precisions
@pytest.mark.parametrize("weights", ["fp32", "split", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_run_continues_to_the_bit(kind, weights, state_precision):
    def start(seed):
        params = parameters(seed, torch.bfloat16 if weights == "bf16" else torch.float32)
        lower_halves = split(params) if weights == "split" else {}
        optimizer = KINDS[kind](params, state_precision=state_precision, clip=5.0)
        optimizer.use_split(lower_halves)
        return params, optimizer

    params, optimizer = start(0)
    run(optimizer, params, range(4))
    saved = through_a_file({"params": [p.detach() for p in params], "optimizer": optimizer.state_dict()})
    run(optimizer, params, range(4, 8))

    others, other = start(1)
    run(other, others, range(2))  # something to be overwritten
    with torch.no_grad():
        for p, value in zip(others, saved["params"], strict=True):
            p.copy_(value)
    other.load_state_dict(saved["optimizer"])
    run(other, others, range(4, 8))
    assert_equal(others, params)
    for p, q in zip(params, others, strict=True):
        assert optimizer.state[p].keys() == other.state[q].keys()
        assert_equal(optimizer.state[p].values(), other.state[q].values())


def test_split_weights_follow_fp32_to_the_bit():
    wholes, halves = parameters(), parameters()
    lower_halves = split(halves)
    fp32, optimizer = AdamW(wholes, lr=1e-2), AdamW(halves, lr=1e-2)
    optimizer.use_split(lower_halves)
    for step in range(50):
        set_gradients(wholes, step)
        for p, q in zip(wholes, halves, strict=True):
            q.grad = p.grad.clone()  # fp32 gradients, as after two micro-batches
        fp32.step()
        optimizer.step()
    assert_equal(whole(halves, optimizer), wholes)
    assert_equal(halves, [p.bfloat16() for p in wholes])  # the upper half is rounded to nearest


def test_loading_writes_into_the_lower_half_that_the_module_holds():
    params = parameters()
    lower_halves = split(params)
    optimizer = AdamW(params, lr=1e-2)
    optimizer.use_split(lower_halves)
    run(optimizer, params, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    expected = lower_halves[params[0]].clone()
    run(optimizer, params, range(2, 4))
    optimizer.load_state_dict(saved)
    assert optimizer.state[params[0]]["weight_lo"] is lower_halves[params[0]]
    assert torch.equal(lower_halves[params[0]], expected)


def test_split_weights_made_whole_go_on_with_their_moments():
    params, plain = parameters(), parameters()
    lower_halves = split(params)
    optimizer, other = AdamW(params, lr=1e-2), AdamW(plain, lr=1e-2)
    optimizer.use_split(lower_halves)
    for step in range(20):
        if step == 10:
            for p, value in zip(params, whole(params, optimizer), strict=True):
                p.data = value
            optimizer.drop_split()
        set_gradients(plain, step)
        for p, q in zip(params, plain, strict=True):
            p.grad = q.grad.clone()
        optimizer.step()
        other.step()
    assert_equal(params, plain)


@for_precisions
def test_states_keep_their_dtypes_when_loaded_for_bf16_parameters(state_precision):
    params = parameters(dtype=torch.bfloat16)
    optimizer = AdamW(params, state_precision=state_precision)
    run(optimizer, params, range(1))
    optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    assert optimizer.state[params[0]]["exp_avg"].dtype is DTYPES[state_precision]


@pytest.mark.parametrize("before", ["fp32", "bf16", "8bit"])
@pytest.mark.parametrize("after", ["fp32", "bf16", "8bit"])
def test_a_state_of_another_precision_is_converted(before, after):
    params = [torch.nn.Parameter(torch.zeros(600, 3))]
    optimizer = Adam(params, amsgrad=True, state_precision=before)
    run(optimizer, params, range(3))
    other = Adam(params, amsgrad=True, state_precision=after)
    other.load_state_dict(optimizer.state_dict())
    reference = Adam(params, amsgrad=True)
    reference.load_state_dict(optimizer.state_dict())
    for each in (other, reference):
        each.zero_grad()
        params[0].grad = torch.zeros(600, 3)
        each.param_groups[0].update(lr=0.0, betas=(1 - 1e-12, 1 - 1e-12))  # so that a step changes no moment
        each.step()
    back = Adam(params, amsgrad=True)
    back.load_state_dict(other.state_dict())
    params[0].grad = torch.zeros(600, 3)
    back.step()
    for key, tolerance in (("exp_avg", 0.08), ("exp_avg_sq", 0.16), ("max_exp_avg_sq", 0.16)):
        expected, came = reference.state[params[0]][key], back.state[params[0]][key]
        scale = expected.abs().max().item()
        torch.testing.assert_close(came, expected, rtol=tolerance, atol=1e-3 * scale)  # a step of the 8-bit code
        assert other.state[params[0]][key].dtype is DTYPES[after]


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
def test_states_go_from_torch_to_ours_and_back(name, options):
    momentum = {"momentum": 0.9} if name == "SGD" else {}
    ours, torchs = parameters(), parameters()
    fast = {"AdamW": AdamW, "Adam": Adam, "SGD": SGD}[name](ours, lr=1e-2, **momentum)
    stock = getattr(torch.optim, name)(torchs, lr=1e-2, **momentum, **options)
    alone = parameters()
    run(getattr(torch.optim, name)(alone, lr=1e-2, **momentum), alone, range(30))
    run(stock, torchs, range(10))
    for target, source in ((ours, torchs), (torchs, ours)):
        one, other = (fast, stock) if target is ours else (stock, fast)
        with torch.no_grad():
            for p, q in zip(target, source, strict=True):
                p.copy_(q)
        one.load_state_dict(through_a_file(other.state_dict()))
        run(one, target, range(10, 20) if target is ours else range(20, 30))
    assert_close(torchs, alone)


def test_loading_does_not_share_tensors_with_what_was_loaded():
    params, others = parameters(), parameters()
    optimizer, other = AdamW(params), AdamW(others)
    run(optimizer, params, range(1))
    other.load_state_dict(optimizer.state_dict())
    assert other.state[others[0]]["exp_avg"].data_ptr() != optimizer.state[params[0]]["exp_avg"].data_ptr()


def test_loading_changes_groups_in_place():
    params = parameters()
    optimizer = AdamW(params, lr=1e-2)
    group = optimizer.param_groups[0]
    other = AdamW(parameters(), lr=0.5)
    torch.optim.lr_scheduler.StepLR(other, 10)
    optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0] is group
    assert group["lr"] == group["initial_lr"] == 0.5
    assert all(p is q for p, q in zip(group["params"], params, strict=True))


def test_seed_and_skipped_steps_are_saved():
    params = parameters()
    optimizer = AdamW(params, seed=7, skip_nonfinite=True)
    set_gradients(params, 0)
    params[0].grad[0, 0] = float("nan")
    optimizer.step()
    other = AdamW(parameters())
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    assert (other.seed, other.skipped_steps) == (7, 1)


def test_load_hooks_run():
    params, calls = parameters(), []
    optimizer = AdamW(params)
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("after"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "after"]


def test_the_state_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"groups with \[6\] parameters, got \[2\]"):
        AdamW(parameters()).load_state_dict(AdamW(parameters()[:2]).state_dict())
    other = AdamW(parameters()[:1])
    run(other, other.param_groups[0]["params"], range(1))
    optimizer = AdamW(parameters()[1:2])
    optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"expected exp_avg of shape \(7,\), got \(33, 7\)"):
        run(optimizer, optimizer.param_groups[0]["params"], range(1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_with_its_parameters_continues_to_the_bit(kind, copied):
    params = parameters(dtype=torch.bfloat16)
    optimizer = KINDS[kind](params, state_precision="8bit", clip=1.0, seed=3)
    run(optimizer, params, range(4))
    others, other = copied((params, optimizer))
    run(optimizer, params, range(4, 8))
    run(other, others, range(4, 8))
    assert_equal(others, params)
    assert (other.clip, other.seed, other.state_precision) == (1.0, 3, "8bit")


def test_a_state_that_was_reset_begins_anew():
    params, fresh = parameters(), parameters()
    optimizer = AdamW(params, lr=1e-2)
    run(optimizer, params, range(3))
    optimizer.state.clear()
    with torch.no_grad():
        for p, q in zip(params, fresh, strict=True):
            p.copy_(q)
    run(optimizer, params, range(3))
    run(AdamW(fresh, lr=1e-2), fresh, range(3))
    assert_equal(params, fresh)


@pytest.mark.parametrize("key", ["exp_avg", "step"])
def test_a_state_tensor_that_was_replaced_or_written_counts(key):
    for replace in (True, False):
        ours, torchs = parameters(), parameters()
        for optimizer, params in ((AdamW(ours, lr=1e-2), ours), (torch.optim.AdamW(torchs, lr=1e-2), torchs)):
            run(optimizer, params, range(3))
            state = optimizer.state[params[0]]
            if replace:
                state[key] = torch.full_like(state[key], 5.0)
            else:
                state[key].fill_(5.0)
            run(optimizer, params, range(3, 6))
        assert_close(ours, torchs)


def test_repr_shows_groups_and_options():
    text = repr(AdamW(parameters(), lr=0.25, clip=1.0, state_precision="8bit"))
    assert text.startswith("AdamW (")
    assert "lr: 0.25" in text
    assert text.endswith("state_precision='8bit', clip=1.0, seed=0)")


def test_a_lower_half_that_does_not_fit_is_refused():
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = AdamW([p])
    with pytest.raises(ValueError, match="a bf16 parameter and an int16 tensor of its shape, got"):
        optimizer.use_split({p: torch.zeros(4, dtype=torch.int16)})
    with pytest.raises(ValueError, match="expected parameters of this optimizer"):
        optimizer.use_split({torch.ones(3, dtype=torch.bfloat16): torch.zeros(3, dtype=torch.int16)})

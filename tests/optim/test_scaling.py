"""The loss scaler, the gradient it multiplies and the step that divides."""

import math

import pytest
import torch
from torch import nn

from fullstride.optim import AdamW, LossScaler, scale_gradient

from .training import assert_close, assert_equal, parameters, set_gradients


def test_the_scale_doubles_after_enough_good_steps_and_halves_on_overflow():
    scaler = LossScaler()
    assert (scaler.scale, scaler.growth_interval) == (1024.0, 2000)
    for _ in range(1999):
        scaler.update(True)
    assert scaler.scale == 1024.0
    scaler.update(True)
    assert scaler.scale == 2048.0
    scaler.update(False)
    assert scaler.scale == 1024.0


def test_growth_and_backoff_are_those_that_were_given():
    scaler = LossScaler(64.0, growth_interval=2, growth=3.0, backoff=0.125)
    scales = []
    for finite in (True, True, False, True, True):
        scaler.update(finite)
        scales.append(scaler.scale)
    assert scales == [64.0, 192.0, 24.0, 24.0, 72.0]


def test_an_overflow_begins_the_count_anew():
    scaler = LossScaler(growth_interval=3)
    for finite in (True, True, False, True, True):
        scaler.update(finite)
    assert scaler.scale == 512.0
    scaler.update(True)
    assert scaler.scale == 1024.0


def test_the_scale_stays_between_one_and_its_bound():
    scaler = LossScaler(growth_interval=1)
    for _ in range(20):
        scaler.update(False)
    assert scaler.scale == 1.0
    for _ in range(50):
        scaler.update(True)
    assert scaler.scale == 2.0**32


def test_the_gradient_is_multiplied_by_the_scale_of_the_moment_and_the_value_is_not():
    scaler = LossScaler()
    x = torch.ones(3, requires_grad=True)
    y = scale_gradient(x, scaler)
    assert torch.equal(y, x)
    scaler.scale = 8.0
    y.sum().backward()
    assert x.grad.tolist() == [8.0] * 3


def test_a_scaled_loss_may_be_changed_in_place():
    x = torch.tensor(3.0, requires_grad=True)
    loss = scale_gradient(x * x, LossScaler())
    loss *= 2
    loss.backward()
    assert x.grad == 2 * 6 * 1024


def test_without_a_scaler_or_a_gradient_the_tensor_itself_comes_back():
    x = torch.ones(3, requires_grad=True)
    assert scale_gradient(x, None) is x
    y = torch.ones(3)
    assert scale_gradient(y, LossScaler()) is y


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_with_scaled_gradients_equals_one_without(clip, unscale):
    params, others = parameters(), parameters()
    optimizer, other = AdamW(params, lr=1e-2, clip=clip), AdamW(others, lr=1e-2, clip=clip, skip_nonfinite=True)
    optimizer.scaler = LossScaler(growth_interval=3)
    for step in range(10):
        set_gradients(others, step)
        set_gradients(params, step, scale=optimizer.scaler.scale)
        if unscale:
            optimizer.unscale_()
            optimizer.unscale_()  # the second time there is nothing left to do
            assert all(torch.equal(p.grad, q.grad) for p, q in zip(params, others, strict=True))
        optimizer.step()
        other.step()
        assert optimizer.last_grad_norm == pytest.approx(other.last_grad_norm, rel=1e-6)
    assert optimizer.scaler.scale == 8 * 1024.0
    assert_equal(params, others)


def test_an_overflow_skips_the_step_and_halves_the_scale():
    params = parameters()
    optimizer = AdamW(params, skip_nonfinite=False)  # the scaler needs the check all the same
    optimizer.scaler = LossScaler()
    set_gradients(params, 0)
    params[0].grad[0, 0] = math.inf
    optimizer.step()
    assert optimizer.scaler.scale == 512.0
    assert optimizer.skipped_steps == 1
    assert_equal(params, parameters())


def test_training_a_model_with_a_scaled_output_follows_one_without():
    def train(scaler):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = AdamW(model.parameters(), lr=1e-2)
        optimizer.scaler = scaler
        for _ in range(20):
            optimizer.zero_grad()
            for part in torch.randn(16, 8).chunk(2):
                scale_gradient(model(part), scaler).square().mean().backward()
            optimizer.step()
        return model.parameters()

    assert_close(train(LossScaler()), train(None), tolerance=1e-6)


def test_the_scaler_is_saved_with_the_optimizer():
    optimizer, other = AdamW(parameters()), AdamW(parameters())
    optimizer.scaler, other.scaler = LossScaler(), LossScaler()
    optimizer.scaler.scale, optimizer.scaler.good_steps = 64.0, 17
    other.load_state_dict(optimizer.state_dict())
    assert (other.scaler.scale, other.scaler.good_steps) == (64.0, 17)


def test_growth_and_backoff_are_saved_with_the_scale():
    scaler, other = LossScaler(64.0, growth_interval=1, growth=3.0, backoff=0.125), LossScaler()
    other.load_state_dict(scaler.state_dict())
    other.update(True)
    assert other.scale == 192.0
    other.update(False)
    assert other.scale == 24.0


def test_bad_scales_are_told():
    with pytest.raises(ValueError, match="expected a scale from 1"):
        LossScaler(0.5)
    with pytest.raises(ValueError, match=r"and backoff between 0 and 1, got 0\.5 and 0\.5"):
        LossScaler(growth=0.5)
    with pytest.raises(ValueError, match=r"and backoff between 0 and 1, got 2\.0 and 1\.5"):
        LossScaler(backoff=1.5)

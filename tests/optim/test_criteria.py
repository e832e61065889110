"""When a layer counts as done: noise of mini-batches must neither hide it nor feign it."""

import math
import random

import pytest
import torch
from torch import nn

import fullstride
from fullstride.optim._criteria import CRITERIA, NUM_SAMPLED, THRESHOLDS, Options, Sampler, Slowed

NOISE = 0.2  # from one mini-batch to the next, as measured in mlp-mnist


def options(criterion, **changes):
    return Options(**{"threshold": THRESHOLDS[criterion], "patience": 30, "smoothing": 0.95} | changes)


def steps_until_calm(criterion, norm_of, num_steps=1000, **changes):
    """The step after which the gradient's norm, with noise on it, counts as small or settled."""
    signs, wish, noise = CRITERIA[criterion](), options(criterion, **changes), random.Random(0)
    for step in range(num_steps):
        signs.see(norm_of(step) * (1 + NOISE * noise.uniform(-1, 1)), list, wish)
        if signs.are_calm(wish):
            return step
    return None


def steps_until_slow(movement_of, num_steps=1000, **changes):
    """The same for weights that walk at random, so far in each step."""
    signs, wish, generator = Slowed(), options("slowed", **changes), torch.Generator().manual_seed(0)
    weights = torch.randn(NUM_SAMPLED, dtype=torch.float64, generator=generator)
    for step in range(num_steps):
        signs.see(1.0, weights.tolist, wish)
        if signs.are_calm(wish):
            return step
        weights += movement_of(step) * torch.randn(NUM_SAMPLED, dtype=torch.float64, generator=generator)
    return None


def test_a_noisy_gradient_of_constant_size_settles():
    assert 30 <= steps_until_calm("settled", lambda step: 1.0) < 300


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_a_noisy_gradient_that_falls_or_rises_by_a_percent_a_step_does_not_settle(share):
    assert steps_until_calm("settled", lambda step: share**step) is None


def test_a_gradient_that_falls_and_then_stays_settles_when_it_stays():
    assert steps_until_calm("settled", lambda step: max(0.1, 0.98**step)) > 115  # where 0.98^step is 0.1


def test_a_gradient_is_below_once_it_is_a_small_part_of_its_largest():
    assert steps_until_calm("below", lambda step: 1.0) is None
    found = steps_until_calm("below", lambda step: 0.99**step)
    assert 120 + 30 < found < 120 + 80  # 0.99^120 is 0.3; smoothing lags by 20 steps, noise starts the count anew


def test_a_rise_above_starts_the_count_anew():
    signs, wish = CRITERIA["below"](), options("below", smoothing=0.0, patience=3)
    calm = []
    for norm in (1.0, 0.1, 0.1, 0.5, 0.1, 0.1, 0.1):
        signs.see(norm, list, wish)
        calm.append(signs.are_calm(wish))
    assert calm == [False] * 6 + [True]


def test_weights_that_walk_at_one_pace_do_not_slow_down():
    assert steps_until_slow(lambda step: 1e-3) is None


def test_weights_slow_down_with_the_learning_rate():
    """After the step in which cosine is at the threshold, and within two looks of it."""
    found = steps_until_slow(lambda step: 1e-3 * (1 + math.cos(math.pi * step / 1000)) / 2)
    expected = 1000 * math.acos(2 * THRESHOLDS["slowed"] - 1) / math.pi
    assert expected - 30 < found < expected + 60


def test_a_slow_beginning_is_no_slowing_down():
    assert steps_until_slow(lambda step: 1e-5 * min(step, 500)) is None  # warm-up


def test_a_thawed_layer_learns_for_patience_steps_before_it_counts_as_slow_again():
    signs, wish, weights = Slowed(), options("slowed", patience=5), [1.0, 1.0]
    for step in range(11):
        signs.see(1.0, lambda: list(weights), wish)
        weights[0] += 0.1 if step < 5 else 0.001
    assert signs.are_calm(wish)
    signs.start_anew()
    for _ in range(5):
        signs.see(1.0, lambda: list(weights), wish)
        assert not signs.are_calm(wish)
    signs.see(1.0, lambda: list(weights), wish)
    assert signs.are_calm(wish)


def test_a_sample_is_spread_over_all_parameters_of_a_stage():
    small, large = nn.Parameter(torch.arange(8.0)), nn.Parameter(torch.arange(8.0, 8 * NUM_SAMPLED).view(8, -1).t())
    sample = Sampler(nn.Module(), [small, large])()
    assert len(sample) == NUM_SAMPLED
    flat = torch.cat([small.flatten(), large.flatten()])  # in the order of dimensions, not of memory
    assert sample == flat[torch.arange(NUM_SAMPLED) * 8].tolist()
    assert Sampler(nn.Module(), [small])() == small.tolist()


def test_a_parameter_of_one_number_is_sampled():
    scale = nn.Parameter(torch.tensor(3.0))
    assert Sampler(nn.Module(), [scale, nn.Parameter(torch.ones(2))])() == [3.0, 1.0, 1.0]


def test_split_weights_are_sampled_with_both_halves():
    torch.manual_seed(0)
    first = nn.Linear(64, 64)
    model = nn.Sequential(first, nn.Linear(64, 64))
    exact = first.weight.detach().clone()
    model, _ = fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision="bf16")
    assert model[0].weight.dtype is torch.bfloat16
    places = torch.arange(NUM_SAMPLED) * exact.numel() // NUM_SAMPLED
    assert Sampler(model, [model[0].weight])() == exact.flatten()[places].double().tolist()
    fullstride.restore(model)

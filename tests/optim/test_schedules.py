import json
import math
from dataclasses import asdict

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from fullstride.optim.schedules import Constant, WarmupCosine, WarmupStableDecay, WarmupStepDecay

ALL = [Constant(warmup=7), WarmupStepDecay(7, 11), WarmupCosine(1e-3, 7, 50), WarmupStableDecay(1e-3, 7, 50, 20)]
for_all = pytest.mark.parametrize("schedule", ALL, ids=lambda s: type(s).__name__)


def sgd(*rates):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr} for lr in rates], lr=1.0)


@pytest.mark.parametrize("kind", [Constant, WarmupStepDecay, WarmupCosine, WarmupStableDecay])
def test_warmup_is_linear_from_one_part_to_the_whole(kind):
    schedule = kind(warmup=4000)
    assert [schedule(0), schedule(999), schedule(1999), schedule(3999)] == [1 / 4000, 0.25, 0.5, 1.0]
    assert schedule(4000) == 1.0


@pytest.mark.parametrize("kind", [Constant, WarmupStepDecay, WarmupCosine, WarmupStableDecay])
def test_without_warmup_the_first_step_has_the_full_rate(kind):
    assert kind(warmup=0)(0) == 1.0


def test_constant_stays():
    assert Constant()(0) == Constant()(10**9) == 1.0


def test_step_decay_halves_every_50000_steps_after_the_warmup():
    schedule = WarmupStepDecay()
    assert schedule(53_999) == 1.0
    assert schedule(54_000) == 0.5
    assert schedule(103_999) == 0.5
    assert schedule(104_000) == 0.25
    assert schedule(4000 + 50_000 * 20) == 0.5**20


def test_cosine_ends_at_the_floor_and_stays_there():
    schedule = WarmupCosine(lr=1e-4)
    assert schedule(4000) == 1.0
    assert schedule(4000 + 98_000) == pytest.approx((1 + 0.01) / 2, rel=1e-12)
    assert schedule(4000 + 49_000) == pytest.approx(0.01 + 0.99 * (0.5 + math.sqrt(0.125)), rel=1e-12)
    assert schedule(199_999) > schedule(200_000)
    assert schedule(200_000) == schedule(10**9) == 1e-6 / 1e-4


def test_stable_decay_holds_then_falls_to_the_floor():
    for shape, half in (("linear", 0.5), ("sqrt", 1 - math.sqrt(0.5))):
        schedule = WarmupStableDecay(lr=1e-4, floor=0.0, shape=shape)
        assert schedule(4000) == schedule(160_000) == 1.0
        assert schedule(160_001) < 1.0
        assert schedule(180_000) == pytest.approx(half, rel=1e-12)
        assert schedule(199_999) > 0
        assert schedule(200_000) == schedule(10**9) == 0.0
    assert WarmupStableDecay(lr=1e-4)(200_000) == 1e-6 / 1e-4


@for_all
def test_no_step_is_above_1_and_no_decay_rises(schedule):
    factors = [schedule(step) for step in range(60)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[7:] == sorted(factors[7:], reverse=True)


@for_all
def test_lambda_lr_gives_the_rates_that_set_gives(schedule):
    with_scheduler, without = sgd(1e-3, 0.5), sgd(1e-3, 0.5)
    scheduler = LambdaLR(with_scheduler, schedule)
    for step in range(60):
        schedule.set(without, step)
        rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in (with_scheduler, without)]
        assert rates[0] == rates[1] == [1e-3 * schedule(step), 0.5 * schedule(step)]
        with_scheduler.step()
        scheduler.step()


@for_all
def test_a_resumed_optimizer_gets_the_same_rates(schedule):
    first = sgd(1e-3, 0.5)
    schedule.set(first, 30)
    resumed = sgd(1e-3, 0.5)
    resumed.load_state_dict(first.state_dict())
    for optimizer in (first, resumed):
        schedule.set(optimizer, 31)
    assert [g["lr"] for g in first.param_groups] == [g["lr"] for g in resumed.param_groups]
    assert first.param_groups[1]["lr"] == 0.5 * schedule(31)


@for_all
def test_a_resumed_lambda_lr_goes_on(schedule):
    optimizer = sgd(1e-3)
    scheduler = LambdaLR(optimizer, schedule)
    for _ in range(20):
        optimizer.step()
        scheduler.step()
    resumed = LambdaLR(sgd(1e-3), schedule)
    resumed.load_state_dict(scheduler.state_dict())
    resumed.optimizer.step()
    resumed.step()
    assert resumed.get_last_lr() == [1e-3 * schedule(21)]


def test_a_rate_kept_in_a_tensor_is_changed_in_place():
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=rate)
    for step in (0, 1, 1):
        Constant(warmup=4).set(optimizer, step)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


@for_all
def test_a_schedule_goes_through_json(schedule):
    assert type(schedule)(**json.loads(json.dumps(asdict(schedule)))) == schedule


@for_all
def test_a_negative_step_is_refused(schedule):
    with pytest.raises(ValueError, match="expected a step of 0 or more, got -1"):
        schedule(-1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(warmup=-1), "Constant: expected warmup as a number of steps, 0 or more, got -1"),
        (lambda: Constant(warmup=0.1), "expected warmup as a number of steps, 0 or more, got 0.1"),
        (lambda: WarmupStepDecay(every=0), "expected `every` of at least 1 step, got 0"),
        (lambda: WarmupStepDecay(factor=0.0), "expected a factor above 0 and at most 1, got 0.0"),
        (lambda: WarmupStepDecay(factor=math.nan), "expected a factor above 0 and at most 1, got nan"),
        (lambda: WarmupCosine(steps=4000), "expected more steps than warm-up, got steps=4000 and warmup=4000"),
        (lambda: WarmupCosine(floor=0.1), r"expected a floor from 0 to lr .*, got floor=0.1 and lr=0.0001"),
        (lambda: WarmupCosine(lr=0.0), "expected the optimizer's learning rate as lr, above 0, got 0.0"),
        (lambda: WarmupStableDecay(steps=40_000), "steps >= warmup \\+ decay, got steps=40000, warmup=4000 and decay"),
        (lambda: WarmupStableDecay(shape="cosine"), "expected a shape of 'sqrt' or 'linear', got 'cosine'"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()

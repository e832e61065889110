"""Islands: steps of their own, then an outer step, against the formula of local_updates.py in one process."""

import pytest
import torch
from torch import nn

import fullstride
from fullstride.distributed.replicas import Plan, Replicas
from fullstride.distributed.world import World

from . import training
from .processes import together

EVERY, ROUNDS = 3, 4
RATE = 0.05
OUTER = {"both": (0.7, 0.9), "momentum 0": (0.7, 0.0), "a mean": (1.0, 0.0)}
TOLERANCE = 2e-6  # of weights of about 1: sums in another order


def make():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batch_of(step, place):
    """Of process number `place`."""
    generator = torch.Generator().manual_seed(100 * step + place)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def loss_of(model, batch):
    x, target = batch
    return (model(x) - target).square().mean()


def by_formula(num_islands, processes_each, rate, momentum):
    """delta     mean over islands of (before - now)
    velocity  momentum velocity + delta
    weights   before - rate (delta + momentum velocity)"""
    models = [make() for _ in range(num_islands)]
    before = [p.detach().clone() for p in models[0].parameters()]
    velocity = [torch.zeros_like(p) for p in before]
    for step in range(1, EVERY * ROUNDS + 1):
        for island, model in enumerate(models):
            own = range(island * processes_each, (island + 1) * processes_each)
            loss = sum(loss_of(model, batch_of(step, place)) for place in own) / processes_each
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p -= RATE * gradient
        if step % EVERY:
            continue
        for i, start in enumerate(before):
            now = [list(model.parameters())[i].detach() for model in models]
            delta = sum(start - each for each in now) / num_islands
            velocity[i] = momentum * velocity[i] + delta
            before[i] = start - rate * (delta + momentum * velocity[i])
            with torch.no_grad():
                for each in now:
                    each.copy_(before[i])
    return before


def by_islands(world: World, num_islands, rate, momentum):
    """The weights, and the megabytes that were sent until each step."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    plan = Plan(local_steps=EVERY, num_islands=num_islands, outer_rate=rate, outer_momentum=momentum)
    replicas = Replicas(world, plan, model, optimizer, "fp32")
    assert replicas.local is not None
    sent = []
    for step in range(1, EVERY * ROUNDS + 1):
        with replicas.micro_batch(is_last=True):
            (loss_of(replicas.model, batch_of(step, world.rank)) / replicas.divisor).backward()
        optimizer.step()
        optimizer.zero_grad()
        replicas.after_step(step, shows=False)
        sent.append(replicas.local.sent)
    return [p.detach().clone() for p in model.parameters()], sent, replicas.averaged is not None


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("num_islands", [2, 3])
def test_islands_of_one_process_go_by_the_formula(num_islands, outer):
    expected = by_formula(num_islands, 1, *OUTER[outer])
    found = together(num_islands, by_islands, num_islands, *OUTER[outer])
    for weights, _, sums_gradients in found:
        assert not sums_gradients
        torch.testing.assert_close(weights, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert all(torch.equal(mine, first) for mine, first in zip(weights, found[0][0], strict=True))


@pytest.fixture(scope="module")
def two_by_two():
    return together(4, by_islands, 2, *OUTER["both"])


def test_islands_of_two_average_gradients_inside_and_weights_between_them(two_by_two):
    expected = by_formula(2, 2, *OUTER["both"])
    for weights, _, sums_gradients in two_by_two:
        assert sums_gradients
        torch.testing.assert_close(weights, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert all(torch.equal(mine, first) for mine, first in zip(weights, two_by_two[0][0], strict=True))


def test_one_model_is_sent_in_a_round_and_nothing_between(two_by_two):
    numbers = sum(p.numel() for p in make().parameters())
    half = 4 * ((numbers + 1) // 2)  # of the model, rounded up: to the other island, and inside of its own
    for _, sent, _ in two_by_two:
        assert sent == [2 * half * (step // EVERY) for step in range(1, EVERY * ROUNDS + 1)]


def stopped_between_rounds(world: World):
    """As by_islands(), but after each meeting everything that is saved is given to another one."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    plan = Plan(local_steps=EVERY, num_islands=world.size, outer_rate=OUTER["both"][0], outer_momentum=OUTER["both"][1])
    replicas = Replicas(world, plan, model, optimizer, "fp32")
    for step in range(1, EVERY * ROUNDS + 1):
        loss_of(model, batch_of(step, world.rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        replicas.after_step(step, shows=False)
        if step % EVERY == 0:
            saved = {name: x.clone() for name, x in replicas.local.tensors().items()}
            replicas = Replicas(world, plan, model, optimizer, "fp32")
            replicas.local.load(saved)
    return [p.detach().clone() for p in model.parameters()]


def test_a_run_of_islands_that_goes_on_has_their_velocity():
    for weights in together(2, stopped_between_rounds):
        torch.testing.assert_close(weights, by_formula(2, 1, *OUTER["both"]), rtol=TOLERANCE, atol=TOLERANCE)


def test_slow_weights_of_islands_are_refused():
    with pytest.raises(ValueError, match=r"optimizer\.lookahead: expected no local_steps with it"):
        training.mlp(distributed={"local_steps": 2}, optimizer={"lookahead": True})


def test_islands_that_freeze_are_refused():
    with pytest.raises(ValueError, match=r"freeze\.enabled: expected no local_steps with it: each island would freeze"):
        training.seven(distributed={"local_steps": 2}, optimizer={"lookahead": False})


@pytest.mark.parametrize(("wish", "expected"), [
    ({"local_steps": 2, "islands": 1}, "2 or more, or None, got 1"),
    ({"islands": 2}, "distributed.local_steps with it, got 2"),
])  # fmt: skip
def test_islands_that_would_have_no_effect_are_refused(wish, expected):
    with pytest.raises(ValueError, match=rf"distributed\.islands: expected {expected}"):
        training.mlp(distributed=wish)


class Tied(nn.Module):
    """An embedding that is the head, too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 64), nn.Linear(64, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x.argmax(-1)))


def in_bf16(world: World, is_tied):
    """Split weights of all processes before an outer step, and those after it."""
    torch.manual_seed(0)
    model = Tied() if is_tied else nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = fullstride.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer = fullstride.prepare(model, optimizer, precision="bf16", threads=1)
    replicas = Replicas(world, Plan(local_steps=1, outer_rate=1.0, outer_momentum=0.0), model, optimizer, "bf16")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    generator = torch.Generator().manual_seed(world.rank)
    model(torch.randn(32, 64, generator=generator)).float().square().sum().backward()
    optimizer.step()
    own = {name: x.clone() for name, x in model.state_dict().items()}
    replicas.after_step(1, shows=False)
    dtypes = {p.dtype for p in model.parameters() if p.dim() > 1}
    return before, own, {name: x.clone() for name, x in model.state_dict().items()}, dtypes


@pytest.mark.parametrize("is_tied", [False, True])
def test_split_weights_stay_exact_through_an_outer_step(is_tied):
    """To the last bit of fp32, of which bf16 has 16 less."""
    (start, one, found, dtypes), (_, other, others_found, _) = together(2, in_bf16, is_tied)
    assert dtypes == {torch.bfloat16}
    for name, before in start.items():
        delta = ((before - one[name]) + (before - other[name])) / 2
        assert torch.equal(found[name], before - delta), name
        assert torch.equal(found[name], others_found[name])
    assert any(not torch.equal(x, x.bfloat16().float()) for x in found.values())


def at_one_step(world: World):
    """The weights after a meeting, and after another call for the same step: the data may end there."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    replicas = Replicas(world, Plan(local_steps=EVERY, num_islands=world.size), model, optimizer, "fp32")
    for step in range(1, 2 * EVERY + 1):
        loss_of(model, batch_of(step, world.rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        replicas.after_step(step, shows=False)
    met = [p.detach().clone() for p in model.parameters()]
    replicas.after_step(step, shows=True)
    return met, [p.detach().clone() for p in model.parameters()]


def test_islands_meet_once_after_a_step():
    for met, again in together(2, at_one_step):
        assert all(torch.equal(one, other) for one, other in zip(met, again, strict=True))


def how_of(world: World, plan):
    how = Replicas(world, plan, make(), None, "fp32").how
    world.barrier()  # the other one may still be connecting
    return how


def test_an_island_that_has_a_part_of_a_micro_batch_says_that_it_takes_it_for_a_whole_one():
    for how in together(2, how_of, Plan(parts=2, local_steps=2)):
        assert "1 x 1/2 of a micro-batch (islands take theirs for a whole one) each a step" in how


def gradients_of_bf16(world: World):
    """Of two micro-batches, in one process; among others it is an island."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Linear(400, 3))  # a part of it is added in place
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = fullstride.prepare(model, optimizer, precision="bf16", threads=1)
    replicas = Replicas(world, Plan(micros=2, local_steps=5), model, optimizer, "bf16")
    for k in (0, 1):
        with replicas.micro_batch(is_last=k == 1):
            x = torch.randn(16, 300, generator=torch.Generator().manual_seed(k))
            (replicas.model(x).square().mean() / replicas.divisor).backward()
    return [p.grad.float() for p in model.parameters()], [p.grad.dtype for p in model.parameters()]


def test_islands_of_one_process_sum_micro_batches_in_fp32_as_one_process_does():
    (expected, dtypes), *_ = together(1, gradients_of_bf16)
    assert set(dtypes) == {torch.float32}
    for found, own in together(2, gradients_of_bf16):
        assert own == dtypes
        assert all(map(torch.equal, found, expected))


def on_unlike_machines(world: World):
    world.local_size = 1 if world.is_first else 2
    with pytest.raises(ValueError, match=r"distributed\.islands") as caught:
        Replicas(world, Plan(local_steps=2), make(), None, "fp32")
    return str(caught.value)


def test_machines_with_other_numbers_of_processes_are_asked_for_the_islands():
    line = (
        "distributed.islands: expected a number, as machines have 1 to 2 processes; give their number, or all as many"
        " processes"
    )
    assert together(3, on_unlike_machines) == [line] * 3


def refused(world: World, num_islands):
    with pytest.raises(ValueError, match=r"distributed\.islands") as caught:
        Replicas(world, Plan(local_steps=2, num_islands=num_islands), make(), None, "fp32")
    return str(caught.value)


@pytest.mark.parametrize("num_islands", [2, 4])
def test_a_number_of_islands_that_does_not_divide_the_processes_is_refused_in_a_line(num_islands):
    line = f"distributed.islands: expected a divisor of the 3 processes, got {num_islands}"
    assert together(3, refused, num_islands) == [line] * 3

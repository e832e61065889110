"""Gradients of several processes are those of one: large layers, tied and lazy heads, both wires, a script's DDP."""

import contextlib
import itertools
import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fullstride
from fullstride.distributed.gradients import Averaged
from fullstride.distributed.replicas import Plan, Replicas, _checksum
from fullstride.distributed.shared_sums import VARIABLE
from fullstride.distributed.world import World

from .processes import mean, together

CLASSES, STEPS = 5000, 5
# fp32: rounding. bf16: gradients are rounded once more or less, and Adam's first steps are as long as the rate.
TOLERANCE = {("fp32", "fp32"): 1e-6, ("fp32", "bf16"): 1e-4, ("bf16", "fp32"): 1e-3, ("bf16", "bf16"): 1e-3}


class Model(nn.Module):
    """Layers large enough for gradients that are added in place, and a head whose logits are lazy."""

    def __init__(self, tied):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 64)
        self.up, self.down = nn.Linear(64, 1024), nn.Linear(1024, 64)
        self.head = nn.Linear(64, CLASSES, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + self.down(torch.relu(self.up(x))))


def prepared(precision, tied):
    torch.manual_seed(0)
    model = Model(tied)
    return fullstride.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), precision=precision, clip=1.0, threads=1
    )


def batches(world, micros):
    """Those of this process, step by step."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        yield torch.randint(0, CLASSES, (micros, 32), generator=generator)[world.rank :: world.size]


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).view(-1, CLASSES), tokens.roll(1))


def by_replicas(world, precision, wire, micros, tied):
    model, optimizer = prepared(precision, tied)
    replicas = Replicas(world, Plan(micros // world.size, gradients=wire), model, optimizer, precision)
    losses = []
    for own in batches(world, micros):
        total = 0.0
        for i, tokens in enumerate(own):
            with replicas.micro_batch(is_last=i == len(own) - 1):
                loss = loss_of(replicas.model, tokens)
                (loss / replicas.divisor).backward()
            total += loss.item() / len(own)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((mean(world, total), optimizer.last_grad_norm))
    assert len(set(world.gather(_checksum(model)))) == 1  # to the bit
    assert world.is_alone or (replicas.averaged._shared is None) == (os.environ.get(VARIABLE) == "0")
    if wire == "fp32":  # of two, each sends as much as a ring does: 2 (n - 1) / n of all gradients
        assert replicas.averaged.sent == STEPS * 4 * sum(p.numel() for p in model.parameters())
    return losses


def by_own_ddp(world, precision, micros, tied):
    model, optimizer = prepared(precision, tied)
    called = model if world.is_alone else DistributedDataParallel(model)
    losses = []
    for own in batches(world, micros):
        total = 0.0
        for i, tokens in enumerate(own):
            stays = not world.is_alone and i < len(own) - 1
            with called.no_sync() if stays else contextlib.nullcontext():
                loss = loss_of(called, tokens)
                (loss / len(own)).backward()
            total += loss.item() / len(own)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((mean(world, total), optimizer.last_grad_norm))
    return losses


def assert_near(one, other, tolerance):
    for (loss, norm), (other_loss, other_norm) in zip(one, other, strict=True):
        assert other_loss == pytest.approx(loss, rel=tolerance)
        assert other_norm == pytest.approx(norm, rel=10 * tolerance)


@pytest.fixture(scope="module")
def alone():
    made = {}

    def run(precision, micros, tied):
        key = (precision, micros, tied)
        if key not in made:
            made[key] = together(1, by_replicas, precision, "auto", micros, tied)[0]
        return made[key]

    return run


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("precision", "wire", "micros"), list(itertools.product(("fp32", "bf16"), ("fp32", "bf16"), (2, 6)))
)
def test_two_processes_step_as_one(precision, wire, micros, tied, alone):
    """Summed in shared memory, and by gloo where weights are not tied; the bits are the same."""
    found = together(2, by_replicas, precision, wire, micros, tied)
    assert found[0] == found[1]
    assert_near(alone(precision, micros, tied), found[0], TOLERANCE[precision, wire])
    if not tied:
        assert together(2, by_replicas, precision, wire, micros, tied, env={VARIABLE: "0"}) == found


@pytest.mark.parametrize(("precision", "micros"), [("fp32", 2), ("fp32", 6), ("bf16", 2), ("bf16", 6)])
@pytest.mark.parametrize("tied", [False, True])
def test_a_script_with_ddp_of_its_own_steps_as_one_process(precision, micros, tied, alone):
    found = together(2, by_own_ddp, precision, micros, tied)[0]
    assert_near(alone(precision, micros, tied), found, TOLERANCE[precision, "fp32"])


def what_was_sent(world: World, steps):
    """The sum of all gradients that came out, that of all that went in, and what is left, of one weight."""
    torch.manual_seed(1)
    model = nn.Linear(32, 16, bias=False)
    averaged = Averaged(model, torch.distributed.group.WORLD, "bf16")
    out, true = torch.zeros(16, 32), torch.zeros(16, 32)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        inputs = torch.randn(world.size, 8, 32, generator=generator)
        with averaged.micro_batch(is_last=True):
            averaged.model(inputs[world.rank]).square().sum().backward()
        out += model.weight.grad
        for x in inputs:
            (gradient,) = torch.autograd.grad(model(x).square().sum(), model.weight)
            true += gradient
        model.weight.grad = None
    left = torch.stack(list(averaged._residuals.values())).sum(0)
    torch.distributed.all_reduce(left)
    averaged.flush()
    with averaged.micro_batch(is_last=True):
        averaged.model(inputs[world.rank]).square().sum().backward()
    return (out + left - true).abs().max().item() / true.abs().max().item(), averaged.has_residual


def test_what_rounding_to_bf16_loses_is_sent_later():
    """But for the rounding of the sum itself, in which two numbers meet."""
    for error, has_residual in together(2, what_was_sent, 60):
        assert error < 2e-3
        assert not has_residual


def after_an_overflow(world: World, wire):
    """Norms of steps of which the second has an infinite gradient in the first process, and how many were skipped."""
    model, optimizer = prepared("bf16", False)
    replicas = Replicas(world, Plan(2, gradients=wire), model, optimizer, "bf16")
    norms = []
    for step, own in enumerate(batches(world, 2 * world.size)):
        for i, tokens in enumerate(own):
            with replicas.micro_batch(is_last=i == 1):
                huge = float("inf") if step == 1 and world.is_first else 1.0
                (huge * loss_of(replicas.model, tokens) / replicas.divisor).backward()
        skipped = optimizer.skipped_steps
        optimizer.step()
        optimizer.zero_grad()
        replicas.after_step(step + 1, False, optimizer.skipped_steps > skipped)
        norms.append(optimizer.last_grad_norm)
    return [norm if math.isfinite(norm) else None for norm in norms], optimizer.skipped_steps


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_a_gradient_that_is_not_finite_costs_one_step(wire):
    (norms, skipped), other = together(2, after_an_overflow, wire)
    assert (norms, skipped) == other
    assert skipped == 1
    assert [norm is None for norm in norms] == [False, True, False, False, False]


def norms_of_few_columns(world: World):
    """The gradient of the first process has one column that is not zero, that of the second none at all: bytes at a few
    places of it are zero before and after the sum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400, bias=False))
    model, optimizer = fullstride.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), precision="fp32", clip=1.0, threads=1
    )
    replicas = Replicas(world, Plan(gradients="fp32"), model, optimizer, "fp32")
    norms = []
    for column in (7, 150, 290):
        x = torch.zeros(16, 300)
        x[:, column] = float(world.is_first)
        with replicas.micro_batch(is_last=True):
            (replicas.model(x).square().sum() / replicas.divisor).backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(optimizer.last_grad_norm)
    return norms


def test_a_norm_is_that_of_the_sum_in_all_processes():
    one, other = together(2, norms_of_few_columns)
    assert one == other
    assert min(one) > 0


def freezes(world: World):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    averaged = Averaged(model, torch.distributed.group.WORLD, "fp32")
    found = []
    for frozen in (False, True, True, False):
        model[0].requires_grad_(not frozen)
        with averaged.micro_batch(is_last=True):
            averaged.model(torch.full((4, 8), 1.0 + world.rank)).sum().backward()
        found.append([None if p.grad is None else p.grad.sum().item() for p in model.parameters()])
        model.zero_grad()
    return found


def test_layers_that_freeze_and_thaw_send_nothing_meanwhile():
    one, other = together(2, freezes)
    assert one == other
    assert [row[0] is None for row in one] == [False, True, True, False]
    assert one[0] == one[3]

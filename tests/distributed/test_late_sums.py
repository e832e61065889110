"""Gradients that are sent when backward is over: of models whose parts a loss calls as it likes."""

import itertools
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride.distributed.replicas import Plan, Replicas, _checksum
from fullstride.distributed.shared_sums import VARIABLE
from fullstride.distributed.world import World

from .processes import mean, together

STEPS = 5
# As in test_averages.py
TOLERANCE = {("fp32", "fp32"): 1e-6, ("fp32", "bf16"): 1e-4, ("bf16", "fp32"): 1e-3, ("bf16", "bf16"): 1e-3}


class Branches(nn.Module):
    """What is called with number k uses branch k % 2; nobody uses the third one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 1024)
        self.branches = nn.ModuleList(nn.Linear(1024, 80) for _ in range(3))

    def forward(self, x, k):
        return self.branches[k % 2](torch.relu(self.body(x)))


def by_model(model, x, k):
    return model(x, k)


def by_parts(model, x, k):
    """As somebody's own loss may do."""
    return model.branches[k % 2](torch.relu(model.body(x)))


def train(world: World, precision, wire, micros, call):
    torch.manual_seed(0)
    model = Branches()
    model, optimizer = fullstride.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), precision=precision, clip=1.0, threads=1
    )
    plan = Plan(micros // world.size, gradients=wire, uses_all=False)
    replicas = Replicas(world, plan, model, optimizer, precision)
    generator, losses = torch.Generator().manual_seed(5), []
    for _ in range(STEPS):
        x = torch.randn(micros, 16, 64, generator=generator)
        mine, total = range(world.rank, micros, world.size), 0.0
        for k in mine:
            with replicas.micro_batch(is_last=k == mine[-1]):
                loss = F.mse_loss(call(replicas.model, x[k], k // 2), torch.ones(16, 80))
                (loss / replicas.divisor).backward()
            total += loss.item() / len(mine)
        unused = [name for name, p in model.named_parameters() if p.grad is None]
        optimizer.step()
        optimizer.zero_grad()
        losses.append((mean(world, total), optimizer.last_grad_norm))
    assert len(set(world.gather(_checksum(model)))) == 1  # to the bit
    assert world.is_alone or (replicas.averaged._shared is None) == (os.environ.get(VARIABLE) == "0")
    return losses, unused


@pytest.fixture(scope="module")
def alone():
    made = {}

    def run(precision, micros):
        if (precision, micros) not in made:
            made[precision, micros] = together(1, train, precision, "auto", micros, by_model)[0]
        return made[precision, micros]

    return run


@pytest.mark.parametrize("call", [by_model, by_parts])
@pytest.mark.parametrize(
    ("precision", "wire", "micros"), list(itertools.product(("fp32", "bf16"), ("fp32", "bf16"), (2, 4)))
)
def test_two_processes_step_as_one_whatever_a_micro_batch_uses(precision, wire, micros, call, alone):
    """With four micro-batches each process uses one branch in its first and the other in its last one."""
    (losses, unused), (others, _) = together(2, train, precision, wire, micros, call)
    assert losses == others
    if call is by_parts and micros == 4:
        by_gloo = together(2, train, precision, wire, micros, call, env={VARIABLE: "0"})
        assert by_gloo[0][0] == losses
    expected, expected_unused = alone(precision, micros)
    assert unused == expected_unused
    tolerance = TOLERANCE[precision, wire]
    for (loss, norm), (own_loss, own_norm) in zip(expected, losses, strict=True):
        assert own_loss == pytest.approx(loss, rel=tolerance)
        assert own_norm == pytest.approx(norm, rel=10 * tolerance)

"""Weights are the same in all processes: at the start, and again where CPUs round otherwise."""

import pytest
import torch
from torch import nn

import fullstride
from fullstride.distributed.replicas import Plan, Replicas, _checksum
from fullstride.distributed.world import World

from .processes import together


def differing(world: World, precision):
    torch.manual_seed(world.rank)
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300))
    return fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision=precision, threads=1)


def repairs(world: World, precision):
    """Whether weights were repaired, were to be, and are those of the first process to the last bit."""
    model, optimizer = differing(world, precision)
    of_first = world.from_first(_checksum(model))
    replicas = Replicas(world, Plan(), model, optimizer, precision)
    return replicas.repair(), replicas.repair(), _checksum(model) == of_first


def test_all_begin_with_the_weights_of_the_first_in_fp32():
    assert together(2, repairs, "fp32") == [(True, False, True)] * 2


def test_all_begin_with_the_weights_of_the_first_both_halves():
    assert together(2, repairs, "bf16") == [(True, False, True)] * 2


def counts(world: World):
    """Of a buffer that follows each process's data, and of one that is not saved, when nobody looks and when one does;
    and the bytes of the statistics that were sent."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.register_buffer("seen", torch.tensor(float(world.rank)))
    model.register_buffer("scratch", torch.tensor(float(world.rank)), persistent=False)
    replicas = Replicas(world, Plan(), model, optimizer, "fp32")
    model.register_buffer("seen", torch.tensor(10.0 + world.rank))  # another tensor now
    replicas.take_costs()
    replicas.after_step(1, shows=False)
    before, sent = model.get_buffer("seen").item(), 1e6 * replicas.take_costs()["sent_mb"]
    replicas.after_step(2, shows=True)
    return before, model.get_buffer("seen").item(), model.get_buffer("scratch").item(), sent


def test_other_buffers_that_are_saved_are_those_of_the_first_when_they_are_looked_at():
    one, other = together(2, counts)
    assert one[:3] == (10.0, 10.0, 0.0)
    assert other[:3] == (11.0, 10.0, 1.0)


def test_bytes_of_statistics_are_counted():
    assert [sent for *_, sent in together(2, counts)] == pytest.approx([4 * (3 + 3)] * 2)  # mean and variance, in fp32


def drifts(world: World, may_drift):
    """Whether weights are alike after a step, and after one whose weights are looked at."""
    model, optimizer = differing(world, "fp32")
    replicas = Replicas(world, Plan(may_drift=may_drift), model, optimizer, "fp32")
    alike = []
    for step, shows in ((1, False), (2, True)):
        replicas.after_step(step, shows)
        alike.append(len(set(world.gather(_checksum(model)))) == 1)
    return alike


def test_processes_that_round_otherwise_meet_before_their_weights_are_looked_at():
    assert together(2, drifts, True) == [[False, True]] * 2


def test_others_are_not_compared_again():
    assert together(2, drifts, False) == [[False, False]] * 2

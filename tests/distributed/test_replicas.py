"""Weights are the same in all processes: at the start, and again where CPUs round otherwise."""

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

"""BatchNorm over the parts of a cut micro-batch is that over the whole."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fullstride.distributed import batch_norm
from fullstride.distributed.peers import Peers
from fullstride.distributed.replicas import Plan, Replicas
from fullstride.distributed.world import World

from .processes import together

OPTIONS = {
    "plain": {},
    "momentum None": {"momentum": None},
    "not affine": {"affine": False},
    "no running statistics": {"track_running_stats": False},
}
SHAPES = {1: [(6,)], 2: [(6, 3, 5)]}
CUTS = {"even": (0, 4, 8), "uneven": (0, 3, 8)}
CASES = list(itertools.product(SHAPES, CUTS, OPTIONS))
STEPS = 3
TOLERANCE = 2e-6  # sums in fp32, added in another order; values are about 1


def layer(dimensions, name):
    torch.manual_seed(1)
    made = (nn.BatchNorm1d if dimensions == 1 else nn.BatchNorm2d)(6, **OPTIONS[name])
    if made.affine:
        with torch.no_grad():
            made.weight.uniform_(0.5, 2.0)
            made.bias.uniform_(-1.0, 1.0)
    return made


def trained(module, dimensions, cut=slice(None)):
    """Outputs, gradients and statistics of some steps, of a part of each batch."""
    generator = torch.Generator().manual_seed(2)
    found: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        shape = (8, *SHAPES[dimensions][0])
        x, dy = (torch.randn(shape, generator=generator) + 1 for _ in range(2))
        x = x[cut].clone().requires_grad_()
        y = module(x)
        y.backward(dy[cut])
        assert x.grad is not None
        found |= {f"y {step}": y.detach(), f"dx {step}": x.grad}
    found |= {f"d{name}": p.grad for name, p in module.named_parameters()}
    found |= {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.eval()
    found["evaluated"] = module(torch.randn((8, *SHAPES[dimensions][0]), generator=generator)).detach()
    return found


def in_parts(world: World):
    """Of every case. The loss is a sum here, so the gradients of weights are summed over the parts."""
    peers = Peers.of(world, world.size)
    assert peers is not None
    results = {}
    for case in CASES:
        dimensions, cut, name = case
        module = layer(dimensions, name)
        assert batch_norm.share_statistics(module, peers) == 1
        ends = CUTS[cut]
        found = trained(module, dimensions, slice(ends[world.rank], ends[world.rank + 1]))
        for key in ("dweight", "dbias"):
            if key in found:
                found[key] = peers.sum(found[key])
        results[case] = found
    return results


@pytest.fixture(scope="module")
def parts():
    return together(2, in_parts)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_give_what_the_whole_gives(case, parts):
    dimensions, _, name = case
    whole = trained(layer(dimensions, name), dimensions)
    one, other = (results[case] for results in parts)
    assert whole.keys() == one.keys() == other.keys()
    for key, expected in whole.items():
        is_cut = key.startswith(("y ", "dx "))
        found = torch.cat([one[key], other[key]]) if is_cut else one[key]
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=10 * TOLERANCE, msg=f"{key}: {{}}".format)
        assert is_cut or torch.equal(one[key], other[key])


def test_in_evaluation_running_statistics_count_and_nobody_is_asked():
    module, x = layer(1, "plain"), torch.randn(8, 6)
    batch_norm.share_statistics(module, None)  # anybody who is asked would be missed
    with torch.no_grad():
        module.running_mean.uniform_()
        module.running_var.uniform_(1, 2)
    module.eval()
    expected = F.batch_norm(x, module.running_mean, module.running_var, module.weight, module.bias)
    assert torch.equal(module(x), expected)


def in_a_model(world: World):
    """Of a step as the trainer takes it: a mean over the batch, divided as Replicas says."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    x, target = torch.randn(8, 5), torch.randn(8, 2)
    replicas = Replicas(world, Plan(parts=world.size), model, None, "fp32")
    own = slice(8 * world.rank // world.size, 8 * (world.rank + 1) // world.size)
    with replicas.micro_batch(is_last=True):
        loss = (replicas.model(x[own]) - target[own]).square().mean()
        (loss / replicas.divisor).backward()
    replicas.after_step(1, shows=False)
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    return gradients | {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_gradients_of_a_model_in_parts_are_those_of_one_process():
    (whole,) = together(1, in_a_model)
    for found in together(2, in_a_model):
        for name, expected in whole.items():
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6, msg=f"{name}: {{}}".format)


def with_whole_micro_batches(world: World):
    """What each process has seen by itself, and what it has after the step."""
    module = layer(1, "plain")
    replicas = Replicas(world, Plan(), module, None, "fp32")
    torch.manual_seed(world.rank)
    with replicas.micro_batch(is_last=True):
        replicas.model(torch.randn(8, 6) + world.rank).sum().backward()
    own = [module.running_mean.clone(), module.running_var.clone()]
    replicas.after_step(1, shows=False)
    return own, [module.running_mean.clone(), module.running_var.clone()], int(module.num_batches_tracked)


def test_statistics_of_whole_micro_batches_are_averaged_after_a_step():
    found = together(2, with_whole_micro_batches)
    assert not torch.equal(found[0][0][0], found[1][0][0])  # each saw other samples
    for i in range(2):
        mean = sum(own[i] for own, _, _ in found) / 2
        assert torch.equal(found[0][1][i], found[1][1][i])
        torch.testing.assert_close(found[0][1][i], mean, rtol=1e-6, atol=1e-7)
    assert [count for _, _, count in found] == [1, 1]

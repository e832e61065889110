"""Sums in memory that processes of one machine share: exact, the same bits in all, and only where all can share it."""

import gc
import hashlib
import math
import os

import pytest
import torch
import torch.distributed as dist

from fullstride.distributed import shared_sums
from fullstride.distributed.shared_sums import SharedSums
from fullstride.distributed.world import World

from .processes import together

NUMBERS = shared_sums._SLOT // 4
"""Of fp32 that one slot holds."""
SIZES = (0, 1, 2, 7, 1000, NUMBERS - 1, NUMBERS, NUMBERS + 1, 2 * NUMBERS + 5)


def numbers(rank, size, dtype):
    generator = torch.Generator().manual_seed(1000 * size + rank)
    return torch.randn(size, generator=generator).to(dtype)


def between_all(world: World) -> SharedSums:
    group = dist.group.WORLD
    assert group is not None
    found = SharedSums.between(world, group)
    assert found is not None
    return found


def sums(world: World, dtype):
    """How far each sum is from that in double, and whether all have the same bits."""
    shared, errors, alike = between_all(world), [], []
    for size in SIZES:
        tensor = numbers(world.rank, size, dtype)
        shared.sum(tensor)
        parts = [numbers(rank, size, dtype).double() for rank in range(world.size)]
        total, most = sum(parts), sum(part.abs() for part in parts)
        errors.append(((tensor.double() - total).abs() / most).nan_to_num().max().item() if size else 0.0)
        alike.append(len(set(world.gather(hashlib.sha256(tensor.view(torch.uint8).numpy()).hexdigest()))) == 1)
    return errors, alike


@pytest.mark.parametrize("num", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_exact_and_the_same_in_all_processes(dtype, num):
    # fp32: one rounding for each process but the first. bf16: rounded once, at the end.
    limit = (num - 1) * 2.0**-24 if dtype is torch.float32 else 2.0**-8
    for errors, alike in together(num, sums, dtype):
        assert max(errors) <= limit
        assert all(alike)


def by_both(world: World, dtype):
    shared, same = between_all(world), []
    for size in SIZES[1:]:
        ours, theirs = numbers(world.rank, size, dtype), numbers(world.rank, size, dtype)
        shared.sum(ours)
        dist.all_reduce(theirs)
        same.append(torch.equal(ours, theirs))
    return same


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_two_processes_they_have_the_bits_of_gloo(dtype):
    assert all(map(all, together(2, by_both, dtype)))


def of_what_is_not_finite(world: World):
    own = [[1.0, math.inf, math.nan, math.inf], [math.inf, -math.inf, 1.0, 2.0]][world.rank]
    tensor = torch.tensor(own)
    between_all(world).sum(tensor)
    return tensor.tolist()


def test_infinity_and_nan_arrive():
    for found in together(2, of_what_is_not_finite):
        assert found[0] == found[3] == math.inf
        assert math.isnan(found[1])
        assert math.isnan(found[2])


def of_matrices(world: World):
    tensor = torch.full((3, 5), 1.0 + world.rank)
    between_all(world).sum(tensor)
    return tensor.tolist()


def test_tensors_of_any_shape_are_summed():
    assert together(3, of_matrices) == [[[6.0] * 5] * 3] * 3


def at_two_places(world: World):
    """The same numbers as the first of a tensor and as the last of a longer one, where they are another one's share."""
    shared, own = between_all(world), numbers(world.rank, 100, torch.float32)
    first, last = torch.cat([own, torch.zeros(500)]), torch.cat([torch.zeros(500), own])
    shared.sum(first)
    shared.sum(last)
    return torch.equal(first[:100], last[-100:])


def test_a_sum_does_not_depend_on_where_in_a_bucket_a_number_lies():
    assert together(4, at_two_places) == [True] * 4


def part_of_a_machine(world: World):
    """As if the last two of three were on another machine."""
    world.local_rank, world.local_size = (0, 1) if world.is_first else (world.rank - 1, 2)
    here = dist.new_group([1, 2])
    alone = dist.new_group([0])
    across = dist.group.WORLD
    assert across is not None
    return SharedSums.between(world, alone if world.is_first else here) is not None, SharedSums.between(world, across)


def test_a_group_on_one_machine_of_several_shares_memory_and_one_across_does_not():
    assert together(3, part_of_a_machine) == [(True, None)] * 3


def within_halves(world: World):
    """Two groups of two, each with memory of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    shared = SharedSums.between(world, groups[world.rank // 2])
    assert shared is not None
    tensor = torch.tensor([10.0**world.rank])
    shared.sum(tensor)
    return tensor.item()


def test_groups_sum_by_themselves():
    assert together(4, within_halves) == [11.0, 11.0, 1100.0, 1100.0]


def is_shared(world: World, trouble):
    if trouble == "another machine":
        world.local_size = 1
    elif trouble == "no memory" and world.rank == 1:
        os.posix_fallocate = out_of_memory
    elif trouble == "somebody else's number" and world.rank == 1:
        real = shared_sums._opened
        shared_sums._opened = lambda place: real([place[0], "00" * 16])
    elif trouble == "cannot be opened" and world.rank == 1:
        real = shared_sums._opened
        shared_sums._opened = lambda place: real([place[0] + "9999", place[1]])
    group = dist.group.WORLD
    assert group is not None
    return SharedSums.between(world, group) is not None


def out_of_memory(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("trouble", ["another machine", "no memory", "somebody else's number", "cannot be opened"])
def test_where_one_cannot_share_memory_none_does(trouble):
    assert together(2, is_shared, trouble) == [False, False]


@pytest.mark.parametrize(("wish", "expected"), [("0", False), ("1", True)])
def test_a_variable_leaves_sums_to_gloo(wish, expected):
    assert together(2, is_shared, "", env={shared_sums.VARIABLE: wish}) == [expected, expected]


def num_mapped():
    with open("/proc/self/maps") as file:
        return sum("memfd:fullstride-sums" in line for line in file)


def mapped(world: World):
    """While sums can be made, and when nobody wants more."""
    shared: SharedSums | None = between_all(world)
    meanwhile = num_mapped()
    del shared
    gc.collect()
    return meanwhile, num_mapped()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_memory_is_given_back():
    assert together(2, mapped) == [(2, 0)] * 2

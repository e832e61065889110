import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fullstride.distributed.world import World, current, joined

from .processes import together

SAID = [{"rank": 0}, "", [], {}, None, "Z\xfcrich \u5317\u4eac \U0001f600", [1.5, float("inf")], 2**60, "x" * 100_000]
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def sums(world):
    return world.sum([world.rank, 1.5]), world.gather({"rank": world.rank}), world.from_first(f"of {world.rank}")


def test_numbers_are_summed_and_words_are_sent():
    everyone = [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert together(3, sums) == [([3.0, 4.5], everyone, "of 0")] * 3


def large_and_small(world):
    return world.sum([2.0**52 if world.is_first else 1.0]), world.sum([])


def test_sums_are_in_double():
    assert together(3, large_and_small) == [([2.0**52 + 2], [])] * 3


def gathers(world):
    """Each says another one of them, at the same time: lengths differ."""
    return [world.gather(SAID[(i + world.rank) % len(SAID)]) for i in range(len(SAID))]


def test_what_each_says_comes_by_rank_be_it_empty_long_or_not_ascii():
    expected = [[SAID[i], SAID[(i + 1) % len(SAID)]] for i in range(len(SAID))]
    assert together(2, gathers) == [expected, expected]


def from_the_first(world):
    return [world.from_first(said if world.is_first else "something else") for said in SAID]


def test_all_hear_the_first_be_it_empty_long_or_not_ascii():
    assert together(2, from_the_first) == [SAID, SAID]


def numbers(rank, dtype):
    """Other ones in each process, of every form: plain, 0-dim, without elements, transposed, every other one."""
    made = (torch.arange(24) % 7 + 3 * rank).to(dtype)
    return [made.clone(), made[3].clone(), made[:0].clone(), made.view(4, 6).clone().t(), made.clone()[::2]]


def overwrite(world):
    wrong = []
    for dtype in DTYPES:
        own, expected = numbers(world.rank, dtype), numbers(0, dtype)
        world.tensors_from_first(own)
        wrong += [str(dtype) for x, y in zip(own, expected, strict=True) if not torch.equal(x, y) or x.dtype != dtype]
    return wrong


def test_tensors_of_every_dtype_and_form_become_those_of_the_first():
    assert together(2, overwrite) == [[], []]


def overwrite_parameter(world):
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(world.rank)
    world.tensors_from_first(layer.parameters())
    return layer.weight.sum().item(), layer.weight.requires_grad, layer.weight.is_leaf


def test_parameters_become_those_of_the_first_and_still_learn():
    assert together(2, overwrite_parameter) == [(0.0, True, True)] * 2


def overwrite_large(world):
    """More than is sent at once."""
    x = torch.full((2**23 + 3,), float(world.rank + 1))
    world.tensors_from_first([x])
    return x.min().item(), x.max().item()


def test_large_tensors_are_sent_whole():
    assert together(2, overwrite_large) == [(1.0, 1.0)] * 2


def fill_cache(world, folder):
    """What was there when this process came."""
    with world.first_goes_first():
        found = sorted(os.listdir(folder))
        (Path(folder) / str(world.rank)).touch()
    return found


def test_the_first_of_a_machine_is_through_before_the_others_begin(tmp_path):
    first, *others = together(3, fill_cache, tmp_path)
    assert first == []
    assert all("0" in found for found in others)


def bytes_of_sums(world):
    before = world.sent
    world.sum([1.0] * 300)
    return world.sent - before, world.waited > 0


def test_bytes_are_counted_as_a_ring_sends_them():
    assert together(3, bytes_of_sums) == [(2 * 2 * 300 * 8 // 3, True)] * 3


def names(world):
    return world.hosts == [os.uname().nodename] * 2, world.name(1), world.is_first, world.is_alone


def test_ranks_are_named_with_their_hosts():
    name = f"rank 1 on {os.uname().nodename}"
    assert together(2, names) == [(True, name, True, False), (True, name, False, False)]


def test_a_process_alone_sends_nothing_and_says_all_to_itself():
    world, x, said = World(), torch.ones(3), {"a": object()}
    world.tensors_from_first([x])
    world.barrier()
    with world.first_goes_first():
        pass
    assert world.sum([1.5, 2]) == [1.5, 2]
    assert world.gather(said) == [said]
    assert world.from_first(said) is said
    assert (world.is_alone, world.is_first, world.sent, world.waited) == (True, True, 0, 0.0)
    assert not dist.is_initialized()


def test_a_process_that_no_launcher_started_is_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with joined() as world:
        assert world == World()
        assert current() == World()
        assert not dist.is_initialized()


def enter_twice(world):
    """The group of processes.py is a script's, as far as the inner one can tell."""
    with joined() as inner:
        inside = inner.rank, inner.size, inner.local_rank
    return inside, dist.is_initialized(), world.sum([1.0])


def test_a_group_that_a_script_made_is_used_and_left_alive():
    assert together(2, enter_twice) == [((0, 2, 0), True, [2.0]), ((1, 2, 1), True, [2.0])]


def rejoin(world):
    dist.destroy_process_group()
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"  # another file to meet in
    with joined() as own:
        inside = own.sum([1.0])
    return inside, dist.is_initialized()


def test_a_group_of_its_own_ends_with_it():
    assert together(2, rejoin) == [([2.0], False)] * 2


def fail_inside(world):
    dist.destroy_process_group()
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    with pytest.raises(KeyError), joined():
        raise KeyError
    return dist.is_initialized()


def test_a_group_of_its_own_ends_by_an_error_too():
    assert together(2, fail_inside) == [False, False]

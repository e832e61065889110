"""What gradients are sent in: as asked for, as before, or what was measured, and the same in all processes."""

import re

import pytest
import torch
import torch.distributed as dist

from fullstride.distributed import wire
from fullstride.distributed.replicas import Plan, Replicas
from fullstride.distributed.world import World

from .processes import together

NOBODY = None
"""A group that must not be asked."""


def measure(world: World):
    assert dist.group.WORLD is not None
    return wire.choose("auto", "bf16", dist.group.WORLD)


class Fast:
    """Sums that take longer in fp32, which nobody but choose() asks for."""

    def __init__(self):
        self.asked = []

    def sum(self, tensor):
        self.asked.append(tensor.dtype)
        torch.distributed.all_reduce(tensor) if tensor.dtype is torch.float32 else None


def by_other_sums(world: World):
    shared = Fast()
    chosen, _ = wire.choose("auto", "bf16", dist.group.WORLD, shared=shared)
    return chosen, sorted({str(dtype) for dtype in shared.asked})


def test_what_sums_is_what_is_measured():
    assert together(2, by_other_sums) == [("bf16", ["torch.bfloat16", "torch.float32"])] * 2


def test_bf16_is_refused_where_a_loss_scale_changes():
    with pytest.raises(ValueError, match="expected fp32 or auto in fp16 training"):
        wire.choose("bf16", "fp16", NOBODY)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("wish", ["fp32", "bf16"])
def test_what_is_asked_for_is_taken(wish, precision):
    other = "fp32" if wish == "bf16" else "bf16"
    assert wire.choose(wish, precision, NOBODY, other) == (wish, "as asked for")


@pytest.mark.parametrize("before", ["fp32", "bf16"])
def test_a_run_that_goes_on_sends_what_it_has_sent_before(before):
    assert wire.choose("auto", "bf16", NOBODY, before) == (before, "as before")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_that_is_not_in_bf16_keeps_its_bits_and_says_what_would_halve_them(precision):
    why = f"a run in {precision} keeps all bits of its gradients; distributed.gradients=bf16 halves them"
    assert wire.choose("auto", precision, NOBODY) == ("fp32", why)


def test_processes_in_bf16_measure_and_come_to_the_same():
    found = together(3, measure)
    assert len(set(found)) == 1
    chosen, rates = found[0]
    said = re.fullmatch(r"(\d+) M numbers/s in fp32, (\d+) in bf16", rates)
    assert said is not None, rates
    fp32, bf16 = map(int, said.groups())
    ahead = bf16 - wire._PAYS * fp32
    assert abs(ahead) < 2 or chosen == ("bf16" if ahead > 0 else "fp32")  # rates are rounded


def without_sums_of_bf16(world: World):
    """gloo has them. What NCCL's and MPI's of old said stands in the first line."""
    real = dist.all_reduce

    def all_reduce(tensor, *arguments, **options):
        if tensor.dtype is torch.bfloat16:
            raise RuntimeError("Input tensor data type is not supported: BFloat16\nmore of it")
        return real(tensor, *arguments, **options)

    dist.all_reduce = all_reduce
    world.local_size = 1  # else the sums would not be the backend's
    model = torch.nn.Linear(3, 2)
    replicas = Replicas(world, Plan(), model, None, "bf16")
    assert replicas.averaged is not None
    with replicas.micro_batch(is_last=True):
        replicas.model(torch.full((1, 3), 1.0 + world.rank)).sum().backward()
    return replicas.averaged.wire, replicas.how, model.weight.grad.tolist()


def test_a_backend_that_has_no_sums_of_bf16_sends_fp32_and_says_why():
    for sent_in, how, gradient in together(2, without_sums_of_bf16):
        assert sent_in == "fp32"
        assert "sent in fp32 (bf16 is refused: Input tensor data type is not supported: BFloat16)" in how
        assert "more of it" not in how
        assert gradient == [[3.0] * 3] * 2

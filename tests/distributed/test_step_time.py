import pytest
import torch
import torch.distributed as dist
from torch import nn

from fullstride.distributed.gradients import Averaged
from fullstride.distributed.step_time import Compute, Link, Sent, allreduce, buckets, efficiency, fit, predict

from .processes import together

MIB = 1 << 20
FAST, SLOW = Link(1e-6, 1e12), Link(1e-3, 1e7)
COMPUTE = Compute(forward=0.1, backward=0.2, rest=0.05)
GRADIENTS = Sent((25 * MIB,) * 8)
ISLANDS = Sent((), local_steps=100, weights=400 * MIB, outer=0.1)


@pytest.mark.parametrize("sent", [GRADIENTS, ISLANDS])
@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_a_node_alone_sends_nothing(sent, kind):
    assert predict(COMPUTE, sent, 1, SLOW, kind).seconds == pytest.approx(COMPUTE.seconds)
    assert efficiency(COMPUTE, sent, 1, SLOW, kind) == pytest.approx(1)


def test_a_fast_link_hides_all_but_the_last_bucket():
    step = predict(COMPUTE, GRADIENTS, 2, FAST)
    assert step.exposed == pytest.approx(allreduce(25 * MIB, 2, FAST))
    assert step.slowed == 0
    assert efficiency(COMPUTE, GRADIENTS, 64, FAST) > 0.99


def test_on_a_slow_link_backward_hides_what_comes_before_its_end():
    """The first bucket is ready after an eighth of backward; from then on the link is never idle."""
    step = predict(COMPUTE, GRADIENTS, 4, SLOW)
    assert step.exposed == pytest.approx(8 * allreduce(25 * MIB, 4, SLOW) - 7 / 8 * COMPUTE.backward)


def test_a_bucket_is_ready_when_its_share_of_backward_is_done():
    link = Link(0, 1e9)
    late, early = Sent((1e6, 9e6)), Sent((9e6, 1e6))
    assert predict(COMPUTE, late, 2, link).exposed == pytest.approx(9e6 / 1e9)
    assert predict(COMPUTE, early, 2, link).exposed == pytest.approx(1e6 / 1e9)


def test_sums_on_the_cores_of_backward_slow_it_down():
    """Half of the cores are busy with sending while a sum is under way, which is the first one's 10 ms."""
    link = Link(0, 1e9, work=0.5e-9)
    step = predict(Compute(0, 1, 0), Sent((10e6, 10e6)), 2, link)
    assert step.slowed == pytest.approx(0.005)
    assert step.exposed == pytest.approx(0.010)


def test_sums_that_need_all_cores_come_before_backward():
    link = Link(0, 1e9, work=2e-9)
    step = predict(Compute(0, 1, 0), Sent((10e6, 10e6)), 2, link)
    assert (step.slowed, step.exposed) == (pytest.approx(0.010), pytest.approx(0.010))


def test_more_nodes_and_slower_links_never_help():
    times = [predict(COMPUTE, GRADIENTS, n, SLOW).seconds for n in (1, 2, 4, 8, 64)]
    assert times == sorted(times)
    assert predict(COMPUTE, GRADIENTS, 8, Link(1e-3, 2e7)).seconds < predict(COMPUTE, GRADIENTS, 8, SLOW).seconds


def test_islands_pay_for_one_sum_and_one_outer_step_in_so_many():
    step = predict(COMPUTE, ISLANDS, 8, SLOW)
    assert step.average == pytest.approx((allreduce(400 * MIB, 8, SLOW) + 0.1) / 100)
    assert step.exposed == step.slowed == 0
    assert step.seconds < predict(COMPUTE, GRADIENTS, 8, SLOW).seconds


def test_a_batch_that_is_divided_leaves_the_optimizer_its_work():
    step = predict(COMPUTE, Sent((1.0,)), 4, Link(0, 1e15), "strong")
    assert step.seconds == pytest.approx(0.3 / 4 + 0.05)
    assert efficiency(COMPUTE, Sent((1.0,)), 4, Link(0, 1e15), "strong") == pytest.approx(0.35 / 0.5)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_fit_finds_the_link_that_times_were_made_with(nodes):
    link, sizes = Link(2e-4, 1.2e8), [4e3 * 4**i for i in range(8)]
    found = fit([(size, allreduce(size, nodes, link)) for size in sizes], nodes)
    assert found.latency == pytest.approx(link.latency, rel=1e-6)
    assert found.bandwidth == pytest.approx(link.bandwidth, rel=1e-6)


def test_a_latency_within_the_noise_is_none():
    assert fit([(1e6, 0.9e-2), (2e6, 2e-2), (4e6, 4.1e-2)]).latency == 0


def test_a_burst_that_small_sums_pass_in_is_not_the_rate_of_a_link():
    """Of 1e8 bytes a second, of which 1e5 pass at once; and one small sum was disturbed."""
    sums = [(1e4, 1e-4), (3e4, 9e-3), (1e5, 1e-4), (1e6, 9.1e-3), (1e7, 9.91e-2), (1e8, 1.0)]
    assert fit(sums).bandwidth == pytest.approx(1e8, rel=1e-2)
    assert fit(sums).latency < 1e-4


def test_sums_that_take_no_longer_when_they_are_larger_are_refused():
    with pytest.raises(ValueError, match="take longer the larger they are"):
        fit([(1e3, 1.0), (2e3, 2.0), (1e6, 1.0)])


@pytest.mark.parametrize("pairs", [[(1e6, 1.0)], [(1e6, 1.0), (1e6, 2.0)], [(1e6, 0.0), (2e6, 1.0)]])
def test_too_few_sums_are_refused(pairs):
    with pytest.raises(ValueError, match="sums of two sizes or more"):
        fit(pairs)


def sent_by_torch(world):
    """Bytes of each bucket, in two steps: torch forms them anew after the first one."""
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(9)], nn.Linear(1024, 4096), nn.Linear(4096, 2048))
    sizes, send = [], Averaged.send

    class Watched(Averaged):
        def send(self, bucket):
            sizes.append(4 * bucket.buffer().numel())
            return send(self, bucket)

    averaged = Watched(model, dist.group.WORLD, "fp32")
    for _ in range(2):
        sizes.clear()
        with averaged.micro_batch(is_last=True):
            averaged.model(torch.ones(1, 1024)).sum().backward()
    return sizes, buckets([4 * p.numel() for p in model.parameters()])


def test_buckets_are_those_of_torch():
    for found, expected in together(2, sent_by_torch):
        assert found == list(expected)
        assert len(found) > 2

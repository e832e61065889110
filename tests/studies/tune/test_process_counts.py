"""Which numbers of processes are tried, and why others are not."""

import pytest

from fullstride.studies.tune import process_counts, settings
from fullstride.studies.tune.child import Children, Estimator

from . import tiny
from .test_settings import DEFAULT, GROUND


def counts(best=DEFAULT, **facts):
    """Those that are tried."""
    return [each.processes for each in settings.others("processes", best, GROUND._replace(**facts))[0]]


def reasons(best=DEFAULT, **facts):
    return settings.others("processes", best, GROUND._replace(**facts))[1]


@pytest.mark.parametrize(
    ("cores", "regions", "expected"),
    [
        (8, (), [2, 4, 8]),
        (6, (1, 1), [2, 4]),
        (2, (0, 1), [2]),
        (16, (4, 2), [2, 4, 8, 16]),
        (48, (3, 1), [3, 2, 4, 8, 16, 32]),
        (8, (16, 1), [2, 4, 8]),
    ],
)
def test_powers_of_two_and_one_for_each_node_or_socket_are_tried(cores, regions, expected):
    best = DEFAULT._replace(micro_batch=96)
    assert counts(best, cores=cores, regions=regions) == expected


def test_each_process_has_all_threads_of_its_share():
    candidates, _ = settings.others("processes", DEFAULT._replace(threads=7), GROUND)
    assert [each.threads for each in candidates] == [None, None, None]
    assert [GROUND.threads_of(each) for each in candidates] == [4, 2, 1]


@pytest.mark.parametrize(("workers", "expected"), [(0, [0, 0, 0]), (5, [3, 2, 1]), ("auto", ["auto"] * 3)])
def test_workers_are_divided_among_processes(workers, expected):
    candidates, _ = settings.others("processes", DEFAULT._replace(workers=workers), GROUND)
    assert [each.workers for each in candidates] == expected


def test_one_core_has_one_process():
    assert counts(cores=1) == []
    assert reasons(cores=1) == {"several processes": "each needs a core, and one is here"}


def test_numbers_that_cannot_share_a_step_alike_are_left_out_with_the_reason():
    best = DEFAULT._replace(micro_batch=31, accumulate=2)
    assert counts(best) == [2]
    why = "2 x 31 samples a step cannot be shared alike"
    assert reasons(best) == {"4 processes": why, "8 processes": why}


def test_batches_that_cannot_be_cut_are_dealt_out_whole():
    best = DEFAULT._replace(accumulate=4)
    assert counts(best, can_cut=False) == [2, 4]
    why = "batches of a loader are not cut, and 4 of them a step cannot be dealt out evenly"
    assert reasons(best, can_cut=False) == {"8 processes": why}


def test_islands_are_another_training():
    facts = {"processes_matter": "islands drift apart"}
    assert counts(**facts) == []
    assert reasons(**facts) == {"several processes": "another training: islands drift apart"}


def test_the_command_says_how_many_unless_it_is_one():
    assert [process_counts.option(count) for count in (1, 2)] == ["", " --nproc 2"]


@pytest.fixture(scope="module")
def estimator():
    config = tiny.config(micro_batch=8, model={"hidden": (1024, 1024)}, distributed={"local_steps": 5})
    with Children(None) as children:
        yield Estimator(children, config)


def test_every_process_is_estimated_to_hold_the_whole_model(estimator):
    one, two, four = (estimator.bytes_of(8, 1, "fp32", count) for count in (1, 2, 4))
    assert one + 4 * 4 * 1024**2 < two < 2 * one  # weights, gradients and two moments
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)


def test_what_was_estimated_before_changes_no_estimate(estimator):
    assert estimator.bytes_of(8, 1, "fp32") == estimator.bytes_of(8, 1, "fp32")


def test_the_facts_say_what_processes_may_share(estimator):
    assert estimator.facts["can_cut"]
    assert "has weights of its own for a while" in estimator.facts["processes_matter"]
    assert len(estimator.facts["regions"]) == 2

"""What can be tried instead of a config, and how it is named."""

import itertools

import pytest

from fullstride.studies.tune import settings
from fullstride.studies.tune.settings import DIMENSIONS, Ground, Settings

from . import tiny

GROUND = Ground(
    cores=8, threads=8, precision="fp32", micro_batch_matters=None,
    precisions={"fp32": {"trouble": "", "gflops": 100.0}, "bf16": {"trouble": "", "gflops": 300.0},
                "fp16": {"trouble": "", "gflops": 5.0}},
)  # fmt: skip
DEFAULT = Settings(None, 128, 8, "auto", "auto", False)


def tried(dimension, best=DEFAULT, ground=GROUND):
    return [settings.label(dimension, each, ground) for each in settings.others(dimension, best, ground)[0]]


@pytest.mark.parametrize("changes", [{}, {"threads": 3, "micro_batch": 4, "overlap_weight_grads": True}])
def test_settings_applied_to_their_config_change_nothing(changes):
    config = tiny.config(**changes)
    assert settings.of(config).applied(config) == config


def test_applied_settings_are_those_of_the_config():
    wish = Settings(3, 16, 4, "bf16", 2, True)
    assert settings.of(wish.applied(tiny.config())) == wish


def test_fields_have_the_names_of_the_config():
    assert Settings(3, 16, 4, "bf16", 2, True).fields() == {
        "threads": 3, "micro_batch": 16, "accumulate": 4, "precision": "bf16", "data.workers": 2,
        "overlap_weight_grads": True, "processes": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("micro_batch", "accumulate", "expected"),
    [
        (128, 8, [(256, 4), (64, 16), (512, 2), (32, 32), (1024, 1), (16, 64)]),
        (8, 1, [(4, 2), (2, 4), (1, 8)]),
        (3, 5, [(15, 1), (1, 15)]),
        (1, 1, []),
        (31, 1, []),  # 1 is less than an eighth of it
    ],
)
def test_splits_keep_the_effective_batch_near_ones_first(micro_batch, accumulate, expected):
    assert settings.splits(micro_batch, accumulate) == expected


def test_splits_of_a_number_with_many_divisors_are_about_twice_each_other():
    sizes = sorted({60, *(size for size, _ in settings.splits(60, 12))})
    assert all(720 % size == 0 for size in sizes)
    assert all(2 * one <= other for one, other in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    ("cores", "now", "expected"),
    [(2, 2, [1]), (8, 8, [7, 4, 2, 1]), (8, 4, [8, 7, 2, 1]), (1, 1, []), (6, 6, [5, 4, 2, 1])],
)
def test_threads_are_the_cores_one_less_and_powers_of_two(cores, now, expected):
    assert settings.thread_counts(cores, now) == expected


def test_what_the_default_comes_to_is_not_tried_again():
    assert tried("threads") == ["7 threads", "4 threads", "2 threads", "1 thread"]
    assert tried("precision") == ["bf16"]
    assert "0 workers" not in tried("workers", DEFAULT._replace(workers=0))


def test_workers_are_none_and_powers_of_two():
    assert tried("workers") == ["no workers", "1 worker", "2 workers", "4 workers", "8 workers"]


def test_a_precision_with_slow_products_is_left_out_with_the_reason():
    left_out = settings.others("precision", DEFAULT, GROUND)[1]
    assert left_out == {"fp16": "its products reach 5 GFLOP/s, those of fp32 100"}


def test_a_precision_that_cannot_be_used_is_left_out_with_the_reason():
    found = {**GROUND.precisions, "bf16": {"trouble": "it died", "gflops": 0.0}}
    candidates, left_out = settings.others("precision", DEFAULT, GROUND._replace(precisions=found))
    assert not candidates
    assert left_out["bf16"] == "it died"


def test_micro_batches_are_left_alone_where_they_decide_what_is_learnt():
    ground = GROUND._replace(micro_batch_matters="negatives come from it")
    candidates, left_out = settings.others("micro-batch", DEFAULT, ground)
    assert not candidates
    assert left_out == {"other micro-batches": "another training: negatives come from it"}


def test_workers_leave_fewer_threads_to_try():
    assert tried("threads beside workers", DEFAULT._replace(workers=2)) == ["6 threads"]
    assert tried("threads beside workers", DEFAULT) == []
    assert tried("threads beside workers", DEFAULT._replace(workers=2, threads=4)) == []


@pytest.mark.parametrize(
    ("best", "why"),
    [
        ({"processes": 8}, "needs two threads, and each of 8 processes has one"),
        ({"processes": 2, "accumulate": 2}, "gradients of the last micro-batch are sent meanwhile, and each"),
        ({"processes": 4, "accumulate": 1}, "gradients of the last micro-batch are sent meanwhile, and each"),
    ],
)
def test_overlap_of_several_processes_needs_threads_and_micro_batches_in_each(best, why):
    candidates, left_out = settings.others("overlap", DEFAULT._replace(**best), GROUND)
    assert not candidates
    assert left_out["overlap"].startswith(why)


def test_processes_with_threads_and_micro_batches_enough_may_overlap():
    assert tried("overlap", DEFAULT._replace(processes=2)) == ["overlap"]


def test_overlap_needs_two_threads():
    assert tried("overlap") == ["overlap"]
    assert settings.others("overlap", DEFAULT._replace(threads=1), GROUND) == (
        [], {"overlap": "needs two threads, and one is best"},
    )  # fmt: skip


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_what_is_tried_differs_from_the_best_and_has_a_name_of_its_own(dimension):
    best = DEFAULT._replace(workers=2)
    candidates, _ = settings.others(dimension, best, GROUND)
    names = [settings.label(dimension, each, GROUND) for each in (best, *candidates)]
    assert candidates
    assert len(set(names)) == len(names)
    assert all(each.micro_batch * each.accumulate == 1024 for each in candidates)


def test_words_name_every_setting():
    assert settings.words(DEFAULT, GROUND) == "8 threads, 8 x 128, auto (fp32), workers auto, no overlap"


def test_words_name_several_processes_and_what_each_has():
    several = DEFAULT._replace(processes=4, workers=1)
    assert settings.words(several, GROUND) == (
        "4 processes, 2 threads each, 8 x 128, auto (fp32), 1 worker, no overlap"
    )

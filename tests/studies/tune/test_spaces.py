"""Where hyper-parameters are searched, and what they make of a config."""

import pytest
from optuna.distributions import IntDistribution

from fullstride.recipes.config import Schedule
from fullstride.studies.tune import spaces

from . import tiny

CONFIG = tiny.config(
    micro_batch=8, accumulate=2, steps=1000, optimizer={"lr": 1e-3, "weight_decay": 0.1},
    schedule={"warmup": 100, "floor": 1e-5},
)  # fmt: skip


def test_names_are_read_in_one_order():
    assert spaces.parse("batch, lr,weight-decay") == ("lr", "weight_decay", "batch")


@pytest.mark.parametrize("text", ["lt", "lr,", "", "lr;batch"])
def test_a_bad_name_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="unknown hyper-parameter") as error:
        spaces.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes", [{}, {"optimizer": {"weight_decay": 0.0}}, {"schedule": {"warmup": 0.5}}])
def test_the_own_values_are_in_the_space(changes):
    config = CONFIG.replace(**changes)
    own, space = spaces.own(spaces.NAMES, config, 1000), spaces.space(spaces.NAMES, config, 1000)
    assert own.keys() == space.keys()
    assert all(space[name]._contains(space[name].to_internal_repr(value)) for name, value in own.items())


def test_only_what_is_asked_for_is_searched():
    assert list(spaces.space(["warmup"], CONFIG, 1000)) == ["warmup"]


def test_the_own_values_make_the_same_training():
    same = spaces.applied(CONFIG, spaces.own(spaces.NAMES, CONFIG, 1000), micro_batch_matters=False)
    assert same == CONFIG.replace(schedule={"warmup": 0.1})


def test_the_floor_keeps_its_share_of_the_rate():
    config = spaces.applied(CONFIG, {"lr": 0.000123456}, micro_batch_matters=False)
    assert config.optimizer.lr == 0.000123
    assert config.schedule.floor == pytest.approx(1.23e-6)


def test_no_decay_is_none_at_all():
    found = spaces.applied(CONFIG, {"decays": False, "weight_decay": 0.3}, micro_batch_matters=False)
    assert found.optimizer.weight_decay == 0.0


@pytest.mark.parametrize(("power", "expected"), [(2, (8, 8)), (0, (8, 2)), (-1, (8, 1)), (-2, (4, 1))])
def test_another_batch_takes_as_many_samples_and_no_more_memory(power, expected):
    config = spaces.applied(CONFIG, {"batch": power}, micro_batch_matters=False)
    assert (config.micro_batch, config.accumulate) == expected
    assert config.steps == 16_000 / (config.micro_batch * config.accumulate)
    assert config.schedule == Schedule(warmup=round(100 / 2**power), floor=1e-5)


def test_what_a_schedule_counts_in_steps_follows_the_batch():
    config = CONFIG.replace(schedule={"name": "step", "every": 300})
    assert spaces.applied(config, {"batch": -1}, micro_batch_matters=False).schedule.every == 600


def test_a_batch_whose_micro_batch_matters_grows_by_that():
    config = spaces.applied(CONFIG, {"batch": 1}, micro_batch_matters=True)
    assert (config.micro_batch, config.accumulate) == (16, 2)


def test_a_batch_is_halved_only_as_often_as_it_can_be():
    space = spaces.space(["batch"], CONFIG.replace(micro_batch=3, accumulate=2), 1000)
    assert space["batch"] == IntDistribution(-1, 2)


def test_values_are_those_of_the_config():
    assert spaces.values(spaces.NAMES, CONFIG) == {"lr": 1e-3, "weight_decay": 0.1, "warmup": 100, "batch": 16}

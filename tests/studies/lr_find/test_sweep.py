"""One range test, for real, on a small classifier."""

import itertools

import pytest
import torch

from fullstride.optim import AdamW
from fullstride.run_folder import metrics
from fullstride.studies.lr_find import sweep
from fullstride.studies.lr_find.span import Span
from fullstride.train.errors import Diverged
from fullstride.train.trainer import Trainer

from .tiny import config

SPAN = Span(1e-5, 10.0, 60)
OPTIMIZERS = {
    "adamw": {"lr": 0.01}, "adam": {"name": "adam", "lr": 0.01}, "lamb": {"name": "lamb"}, "sgd": {"name": "sgd"},
    "lookahead": {"lr": 0.01, "lookahead": True},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_every_optimizer_the_loss_falls_before_it_rises(name):
    found = sweep.sweep(config(optimizer=OPTIMIZERS[name]), SPAN)
    losses = found["losses"]
    assert found["rates"] == [SPAN.rate(step) for step in range(len(losses))]
    lowest = losses.index(min(losses))
    assert 10 < lowest < len(losses) - 1
    assert min(losses) < losses[0] - 0.1
    assert max(losses[lowest:]) > losses[0]


def test_it_ends_where_the_loss_is_far_above_its_start():
    found = sweep.sweep(config(clip=None, optimizer={"name": "sgd"}), Span(1e-4, 1e4, 80))
    assert len(found["losses"]) < 80
    assert found["diverged"] == pytest.approx(Span(1e-4, 1e4, 80).rate(len(found["losses"])))
    assert found["why"] == "the loss is far above where it began"


def test_the_first_loss_is_that_of_the_trainer(tmp_path):
    wish = config(steps=1, accumulate=3, seed=5)
    result = Trainer(wish, tmp_path / "run").fit()
    (row,) = [row for row in metrics.read(result.run) if row["kind"] == "train"]
    assert sweep.sweep(wish, SPAN)["losses"][0] == row["loss"]


def test_a_repeat_with_the_same_seed_is_the_same_and_with_another_is_not():
    one, same, other = (sweep.sweep(config(seed=seed), SPAN)["losses"] for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_gradients_that_overflow_in_fp16_are_no_steps():
    found = sweep.sweep(config(precision="fp16", loss_scale={"start": 2.0**32}, max_nonfinite=100), SPAN)
    assert found["precision"] == "fp16"
    assert found["skipped"] > 0
    assert len(found["losses"]) > 20
    assert min(found["losses"]) < found["losses"][0] - 0.1


def test_a_rate_that_fails_at_once_is_one_clear_line():
    with pytest.raises(Diverged) as caught:
        sweep.sweep(config(clip=None, optimizer={"name": "sgd"}), Span(1e30, 1e35, 60))
    line = str(caught.value)
    assert line.startswith("lr-find: ")
    assert "give a lower --lowest or --precision fp32" in line
    assert "\n" not in line


def test_the_process_is_as_before():
    """No model stays prepared."""
    from fullstride import runtime

    sweep.sweep(config(), SPAN)
    assert not list(runtime.current().users)


# ---- what a step may bring -------------------------------------------------------------------------------------------


def test_a_skipped_step_is_taken_again_at_its_rate():
    asked = []

    def take(schedule, step):
        asked.append(step)
        return 3.0, len(asked) not in (2, 3)

    found = sweep.climb(take, config(), Span(1e-4, 1.0, 30))
    assert asked == [0, 1, 1, 1, *range(2, 30)]
    assert found["skipped"] == 2
    assert len(found["losses"]) == 30
    assert found["diverged"] is None


def told(take, monkeypatch, every):
    """What is said when so many seconds are to pass between two lines."""
    said: list[str] = []
    monkeypatch.setattr(sweep, "_SAY_EVERY", every)
    sweep.climb(take, config(seed=3), Span(1e-4, 1.0, 30), said.append)
    return said


def test_it_says_now_and_then_how_far_it_is(monkeypatch):
    said = told(lambda schedule, step: (3.0, True), monkeypatch, 0.0)
    assert len(said) == 30
    assert said[0] == "range test, seed 3: step 1 of 30, rate 1e-4, smoothed loss 3"
    assert said[-1] == "range test, seed 3: step 30 of 30, rate 1, smoothed loss 3"
    assert told(lambda schedule, step: (3.0, True), monkeypatch, float("inf")) == []


def test_it_says_that_the_first_steps_are_skipped(monkeypatch):
    calls = itertools.count()
    said = told(lambda schedule, step: (3.0, next(calls) > 0), monkeypatch, 0.0)
    assert said[0] == "range test, seed 3: step 0 of 30, 1 skipped"


def test_too_many_skipped_steps_in_a_row_are_a_divergence():
    calls = itertools.count()
    found = sweep.climb(lambda schedule, step: (3.0, next(calls) < 12), config(max_nonfinite=4), Span(1e-4, 1.0, 30))
    assert found["why"] == "4 steps in a row had a gradient that is not finite"
    assert found["diverged"] == pytest.approx(Span(1e-4, 1.0, 30).rate(12))
    assert len(found["losses"]) == 12


def test_a_loss_that_is_not_finite_ends_the_test_and_is_not_recorded():
    calls = itertools.count()
    found = sweep.climb(
        lambda schedule, step: (float("nan") if next(calls) == 15 else 3.0, True), config(), Span(1e-4, 1.0, 30)
    )
    assert found["losses"] == [3.0] * 15
    assert found["why"] == "the loss is nan"


def test_nan_in_the_first_step_says_what_to_do():
    with pytest.raises(Diverged, match="the loss is nan after 0 steps, at the rate 1e-4: check the data"):
        sweep.climb(lambda schedule, step: (float("nan"), True), config(), Span(1e-4, 1.0, 30))


def test_groups_with_rates_of_their_own_keep_their_ratio():
    one, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = AdamW([{"params": [one]}, {"params": [other], "lr": 0.03}], lr=0.01)
    sweep.Growing(0.01, Span(1e-4, 1.0, 30)).set(optimizer, 29)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1.0, 3.0])

"""The loss by quarter of the run: slopes, whether they are more than noise, and what is said of them."""

import numpy as np
import pytest

from fullstride.report import learning, slopes

from .runs import eval_row, event_row, make_run, train_row

STEPS = np.arange(1.0, 101.0)


def run_of(losses, evals=(), **changes):
    found = [train_row(step, loss=loss) for step, loss in zip(range(1, len(losses) + 1), losses, strict=True)]
    found += [eval_row(step, 0.5, loss=loss) for step, loss in evals]
    return make_run([*found, event_row(len(losses), "end")], **changes)


def test_a_line_has_its_slope_and_ends():
    slope = slopes.fit(STEPS, 3 - 0.01 * STEPS, 0, 100)
    assert slope.per_step == pytest.approx(-0.01)
    assert (slope.begin, slope.end) == (pytest.approx(2.99), pytest.approx(2.0))
    assert slope.course == "falling"


def test_what_rises_is_rising_and_what_stays_is_flat():
    assert slopes.fit(STEPS, 1 + 0.01 * STEPS, 0, 100).course == "rising"
    assert slopes.fit(STEPS, np.full(100, 1.0), 0, 100).course == "flat"


@pytest.mark.parametrize("length", [10, 30, 100])
def test_a_bent_curve_is_falling(length):
    noise = np.random.default_rng(0).normal(0, 0.02, 100)
    assert slopes.fit(STEPS, 2 + 3 * np.exp(-STEPS / length) + noise, 0, 100).course == "falling"


def test_a_certain_change_that_is_too_small_to_matter_is_flat():
    assert slopes.fit(STEPS, 1 - 1e-5 * STEPS, 0, 100).course == "flat"


@pytest.mark.parametrize(("memory", "most"), [(0.0, 8), (0.5, 24)])
def test_noise_is_rarely_taken_for_a_slope(memory, most):
    random, wrong = np.random.default_rng(0), 0
    for _ in range(400):
        noise = random.normal(0, 0.2, 140)
        for i in range(1, 140):
            noise[i] += memory * noise[i - 1]
        wrong += slopes.fit(STEPS, 2 + noise[40:], 0, 100).course != "flat"
    assert wrong <= most  # of 400; without regard to neighbours a memory of 0.5 gives 60


def test_a_slope_twice_its_noise_over_the_quarter_is_seen():
    random = np.random.default_rng(0)
    found = [slopes.fit(STEPS, 2 - 0.004 * STEPS + random.normal(0, 0.2, 100), 0, 100).course for _ in range(100)]
    assert found.count("falling") >= 95


@pytest.mark.parametrize(("num_points", "known"), [(0, False), (1, False), (2, True), (3, True)])
def test_few_points_have_a_slope_at_most_and_no_verdict(num_points, known):
    slope = slopes.fit(STEPS[:num_points], -STEPS[:num_points], 0, 100)
    assert (slope.per_step is not None, slope.course) == (known, "unknown")


def test_losses_that_are_not_finite_are_left_out():
    losses = np.where(STEPS % 7 == 0, np.nan, 3 - 0.01 * STEPS)
    assert slopes.fit(STEPS, losses, 0, 100).per_step == pytest.approx(-0.01)


def test_quarters_have_their_own_slopes():
    losses = np.concatenate([np.linspace(4, 2, 25), np.linspace(2, 1, 25), np.full(50, 1.0)])
    found = slopes.by_quarter(run_of(losses), run_of(losses).train)
    assert [slope.course for slope in found] == ["falling", "falling", "flat", "flat"]
    assert [(slope.first, slope.last) for slope in found] == [(0, 25), (25, 50), (50, 75), (75, 100)]


def test_a_loss_that_still_falls_asks_for_longer_training():
    text = learning.section(run_of(np.linspace(3, 2, 100))).text
    assert "The training loss was still falling in the last quarter, by 10.8\N{NO-BREAK SPACE}%." in text
    assert text.endswith("Longer training would help.")


def test_a_flat_loss_says_since_when():
    text = slopes.sentences(run_of([*np.linspace(4, 1, 50), *np.full(50, 1.0)]))
    assert text.startswith("The training loss was flat since the third quarter")
    assert text.endswith("gain little.")


def test_a_validation_loss_that_rises_decides():
    evals = [(step, 1.0 if step < 75 else 1.0 + (step - 75) / 50) for step in range(5, 101, 5)]
    text = slopes.sentences(run_of(np.linspace(3, 1, 100), evals))
    assert "The validation loss was rising in the last quarter" in text
    assert text.endswith("stop earlier, or regularise more.")


def test_few_evaluations_are_judged_over_half_of_the_run():
    text = slopes.sentences(run_of(np.linspace(3, 1, 100), [(step, 4 - step / 50) for step in range(10, 101, 10)]))
    assert "The validation loss was still falling in the last half of the run" in text


def test_table_has_slopes_by_steps_and_by_epoch():
    table = slopes.tables(run_of(np.linspace(3, 2.01, 100)))[0]
    assert table.columns == ("up to step", "loss", "in 1,000 steps", "an epoch", "course")
    assert table.rows[3] == ("100", "2.25 to 2.01", "-10.0", "-0.300", "falling")  # an epoch has 30 steps


def test_a_run_that_is_not_over_is_spoken_of_so_far():
    found = [train_row(step, loss=3 - step / 50) for step in range(1, 41)]
    assert "So far: the training loss was still falling" in learning.section(make_run(found)).text


def test_a_run_of_one_row_has_no_slopes():
    run = make_run([train_row(5)])
    assert (slopes.tables(run), slopes.sentences(run)) == ([], "")

"""Verdicts on gradients: of rows made here, and of real runs that go well or wrong."""

import math
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import fullstride
from fullstride.run_folder import gradient_verdicts
from fullstride.run_folder.gradient_verdicts import judge
from fullstride.run_folder.metrics import read
from fullstride.train.errors import Diverged
from tests.train.runs import small, train


def rows(num_rows=16, **norms):
    """layer=(|g|, |w|), each a number or a function of the row."""

    def value(wish, i):
        return wish(i) if callable(wish) else wish

    return [
        {
            "kind": "train", "attempt": 1, "step": 10 * (i + 1),
            "grad_norms": {name: value(g, i) for name, (g, _) in norms.items()},
            "weight_norms": {name: value(w, i) for name, (_, w) in norms.items()},
        }
        for i in range(num_rows)
    ]  # fmt: skip


def verdicts_of(found):
    return {verdict.layer: verdict.word for verdict in judge(found)}


def test_layers_of_like_influence_are_fine_whatever_their_scale():
    assert verdicts_of(rows(a=(1e-3, 1e3), b=(10.0, 0.1), c=(1.0, 1.0))) == {"a": "fine", "b": "fine", "c": "fine"}


def test_a_layer_far_below_the_others_vanishes():
    assert verdicts_of(rows(a=(1e-6, 5.0), b=(1.0, 5.0))) == {"a": "vanishing", "b": "fine"}


def test_a_layer_without_any_gradient_left_vanishes():
    found = judge(rows(a=(0.0, 5.0), b=(1.0, 5.0)))
    assert (found[0].word, found[0].why) == ("vanishing", "exactly 0")
    assert "exactly 0" in gradient_verdicts.summary(found)


def test_gradients_that_fall_together_as_the_loss_does_do_not_vanish():
    found = rows(a=(lambda i: 10.0**-i, 5.0), b=(lambda i: 3 * 10.0**-i, 5.0))
    assert verdicts_of(found) == {"a": "fine", "b": "fine"}


def test_a_layer_that_began_late_is_fine():
    assert verdicts_of(rows(a=(lambda i: 1e-7 if i < 10 else 0.5, 5.0), b=(1.0, 5.0))) == {"a": "fine", "b": "fine"}


def test_single_mini_batches_decide_nothing():
    jumps = random.Random(0)

    def noisy(i):
        return 1e-7 if i % 5 == 0 else 1e5 if i % 5 == 3 else jumps.uniform(0.5, 2.0)

    assert verdicts_of(rows(40, a=(noisy, 5.0), b=(1.0, 5.0))) == {"a": "fine", "b": "fine"}


def test_few_weights_beside_many_do_not_vanish():
    start = {"kind": "event", "event": "start", "attempt": 1, "step": 0, "layers": {"norm": 100, "embedding": 10**8}}
    found = rows(norm=(5e-4, 1.0), embedding=(1.0, 20.0))
    assert verdicts_of(found)["norm"] == "vanishing"
    assert verdicts_of([start, *found])["norm"] == "fine"


def test_a_gradient_far_above_the_weights_explodes():
    assert verdicts_of(rows(a=(500.0, 5.0), b=(1.0, 5.0))) == {"a": "exploding", "b": "fine"}


def test_a_tiny_parameter_with_a_gradient_is_fine():
    assert verdicts_of(rows(scale=(0.1, 1e-4), b=(0.5, 5.0)))["scale"] == "fine"


def test_a_rise_by_orders_of_magnitude_above_the_weights_explodes():
    assert verdicts_of(rows(a=(lambda i: 10.0 ** (i / 4 - 3), 5.0), b=(1.0, 5.0)))["a"] == "fine"
    assert verdicts_of(rows(a=(lambda i: 20 * 10.0 ** (i / 4 - 3), 5.0), b=(1.0, 5.0)))["a"] == "exploding"


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_what_is_not_finite_at_the_end_explodes(bad):
    assert verdicts_of(rows(2, a=(lambda i: 1.0 if i == 0 else bad, 5.0)))["a"] == "exploding"


def test_one_overflow_while_a_loss_scale_is_found_is_fine():
    assert verdicts_of(rows(a=(lambda i: None if i == 0 else 1.0, 5.0)))["a"] == "fine"


def test_too_few_rows_give_no_verdict():
    assert judge(rows(3, a=(1.0, 1.0), b=(1e-9, 1.0))) == []
    assert gradient_verdicts.summary([]) == ""


def test_rows_of_earlier_versions_are_judged_by_the_gradients_alone():
    found = [row | {"weight_norms": None} for row in rows(a=(1e-6, 5.0), b=(1.0, 5.0))]
    assert verdicts_of(found) == {"a": "vanishing", "b": "fine"}


def test_a_layer_that_was_frozen_is_not_called_vanishing():
    found = rows(a=(1.0, 5.0), b=(1.0, 5.0))
    for row in found[6:]:
        del row["grad_norms"]["a"]
    first = judge(found)[0]
    assert (first.word, first.why) == ("no gradient", "none since step 60")
    assert gradient_verdicts.summary(judge(found)) == "The gradients of the only layer are fine."


def fit(folder, activation, depth, optimizer, steps=60):
    torch.manual_seed(0)
    layers = [part for _ in range(depth) for part in (nn.Linear(24, 24), activation())]
    model = nn.Sequential(*layers, nn.Linear(24, 4))
    data = DataLoader(fullstride.SyntheticDataset(200, 24, 4), 20)
    options = {"precision": "fp32", "threads": 1, "logging": {"every": 4}, "report": False, "quiet": True}
    fullstride.fit(model, data, nn.CrossEntropyLoss(), steps=steps, run=folder, optimizer=optimizer, **options)


def test_deep_sigmoids_vanish_in_front_and_the_log_says_so(tmp_path):
    fit(tmp_path / "run", nn.Sigmoid, 9, {"lr": 1e-3})
    words = [verdict.word for verdict in judge(read(tmp_path / "run"))]
    assert words[:3] == ["vanishing"] * 3
    assert words[-3:] == ["fine"] * 3
    assert "are vanishing (layer 0, layer 2" in (tmp_path / "run" / "log.txt").read_text()


def test_too_high_a_rate_explodes(tmp_path):
    with pytest.raises(Diverged):
        fit(tmp_path / "run", nn.ReLU, 6, {"name": "sgd", "lr": 300.0})
    assert {verdict.word for verdict in judge(read(tmp_path / "run"))} == {"exploding"}


def test_a_recipe_is_fine_and_the_log_is_silent_about_it(tmp_path):
    train(tmp_path / "run", small())
    found = judge(read(tmp_path / "run"))
    assert gradient_verdicts.summary(found) == "Gradients of all 3 layers are fine."
    assert "radients of" not in (tmp_path / "run" / "log.txt").read_text()


def test_layers_that_a_run_froze_have_no_gradient(tmp_path):
    frozen = {"enabled": True, "threshold": 1e9, "patience": 1}
    train(tmp_path / "run", small(steps=24, freeze=frozen))
    words = [verdict.word for verdict in judge(read(tmp_path / "run"))]
    assert words[0] == "no gradient"
    assert "vanishing" not in words

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride import optim
from fullstride.optim.freezing import DynamicFreezer

from .freezers import batch, by_norms, frozen_by, give_norms, layers_of, mlp, traced


def requires_grad(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


# ---- when a layer freezes --------------------------------------------------------------------------------------------


def test_a_layer_freezes_after_patience_steps_of_small_change():
    freezer = traced(mlp(), patience=30)
    for step in range(30):
        assert not freezer.report().frozen_layers, step
        give_norms(freezer, 1.0 + 0.009 * (step % 2), *[2.0**step] * 3)
        freezer.step()
    assert freezer.report().frozen_layers == ["0"]


def test_one_larger_change_starts_the_count_anew():
    freezer = traced(mlp(), patience=5)
    for norm in (1, 1, 1, 1, 1.02, 1.02, 1.02, 1.02, 1.02):
        give_norms(freezer, norm, 1, 1, 1)
        freezer.step()
    assert not freezer.report().frozen_layers
    give_norms(freezer, 1.02, 1, 1, 1)
    assert freezer.step()
    assert freezer.report().frozen_layers == ["0", "1", "2", "3", "4"]  # the others had waited for the first


def test_a_settled_layer_waits_for_those_before_it():
    freezer = traced(mlp(), patience=2)
    for step in range(10):
        give_norms(freezer, 1.5**step, 1, 1, 1)
        assert not freezer.step()
    assert requires_grad(freezer.model) == [name for name, _ in freezer.model.named_parameters()]


@pytest.mark.parametrize("min_active", [1, 2])
def test_the_last_layers_never_freeze(min_active):
    freezer = traced(mlp(), patience=1, min_active=min_active)
    for _ in range(5):
        give_norms(freezer, 1, 1, 1, 1)
        freezer.step()
    assert len(freezer._frozen) == 4 - min_active
    freezer = traced(nn.Sequential(nn.Linear(8, 8)), patience=1)
    give_norms(freezer, 1)
    assert not freezer.step()


def test_gradients_of_zero_are_settled_and_a_rise_from_zero_is_not():
    freezer = traced(mlp(), patience=3)
    for norm in (0, 0, 0, 1e-30, 0, 0):
        give_norms(freezer, norm, 1, 1, 1)
        assert not freezer.step()
    for _ in range(2):
        give_norms(freezer, 0, 1, 1, 1)
        changed = freezer.step()
    assert changed


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_gradients_that_are_not_finite_count_for_nothing(bad):
    freezer = traced(mlp(), patience=2)
    for norms in ((1, 1, 1, 1), (1, bad, 1, 1)):
        give_norms(freezer, *norms)
        assert not freezer.step()
    give_norms(freezer, 1, 1, 1, 1)
    assert freezer.step()


def test_a_step_without_gradients_of_a_layer_counts_for_nothing():
    freezer = traced(mlp(), patience=2)
    for given in (True, False):
        give_norms(freezer, 1, 1, 1, 1)
        if not given:
            freezer.model[0].weight.grad = freezer.model[0].bias.grad = None
        assert not freezer.step()
    give_norms(freezer, 1, 1, 1, 1)
    assert freezer.step()


def test_sparse_gradients_are_measured():
    model = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 8))
    freezer = by_norms(model, patience=2)
    for _ in range(3):
        model.zero_grad()
        model(torch.tensor([1, 1, 3])).sum().backward()
        freezer.step()
    assert freezer.report().frozen_layers == ["0"]


# ---- what freezing does ----------------------------------------------------------------------------------------------


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, counter):
        ctx.counter = counter
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.counter.append(1)
        return grad, None


class CountingLinear(nn.Linear):
    """Counts how often backward passes its output."""

    def forward(self, x):
        self.backwards = getattr(self, "backwards", [])
        self.last = Counted.apply(super().forward(x), self.backwards)
        return self.last


def test_backward_ends_at_the_first_layer_that_learns():
    layers = [CountingLinear(8, 8) for _ in range(4)]
    model, x = nn.Sequential(*layers), batch()[0]
    frozen_by(model, 2)
    saved = []

    def keep(tensor):
        saved.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = model(x)
    assert [layer.last.grad_fn is None for layer in layers] == [True, True, False, False]
    assert x.data_ptr() not in saved
    assert layers[0].last.data_ptr() not in saved  # the activation between the frozen layers is not kept
    assert layers[1].last.data_ptr() in saved
    y.sum().backward()
    assert [len(layer.backwards) for layer in layers] == [0, 0, 1, 1]


def optimizers():
    return {
        "torch AdamW": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
        "torch SGD": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=0.1),
        "AdamW": lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.1),
        "AdamW, 8-bit": lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.1, state_precision="8bit"),
    }


for_optimizers = pytest.mark.parametrize("kind", ["torch AdamW", "torch SGD", "AdamW", "AdamW, 8-bit"])


def train_step(run, step, num_batches=1):
    model, optimizer, freezer = run
    losses = []
    for i in range(num_batches):
        x, y = batch(100 * step + i)
        loss = F.mse_loss(model(x), y) / num_batches
        loss.backward()
        losses.append(loss.item())
    freezer.step(sum(losses))
    optimizer.step()
    optimizer.zero_grad()
    return losses


def bits(model, optimizer):
    """Everything that a run is made of, as one list."""
    state = optimizer.state_dict()["state"]
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    tensors |= {f"{i} {k}": v for i, s in state.items() for k, v in s.items() if isinstance(v, torch.Tensor)}
    return {name: t.contiguous().view(torch.uint8).clone() for name, t in tensors.items() if t.dim()}


@for_optimizers
def test_frozen_layers_and_their_state_do_not_move_and_groups_stay(kind):
    model = mlp()
    optimizer = optimizers()[kind](model.parameters())
    freezer = by_norms(model, threshold=1e9, patience=3, min_active=2)
    for step in range(5):
        train_step((model, optimizer, freezer), step)
    assert len(freezer._frozen) == 2
    assert [p.grad for p in list(model.parameters())[:4]] == [None] * 4
    before, groups = bits(model, optimizer), [id(p) for p in optimizer.param_groups[0]["params"]]
    for step in range(5, 8):
        train_step((model, optimizer, freezer), step)
    after = bits(model, optimizer)
    assert groups == [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    assert before.keys() == after.keys()
    same = [name for name in before if torch.equal(before[name], after[name])]
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= {*same}
    assert not {"4.weight", "4.bias", "6.weight", "6.bias"} & {*same}
    assert {name for name in before if name[:2] in ("0 ", "1 ", "2 ", "3 ")} <= {*same}


def assert_interruption_changes_nothing(make, save_at, num_batches):
    """30 steps that freeze and thaw, against the same with everything made anew and loaded before step `save_at`."""
    run = make()
    frozen = set()
    for step in range(30):
        if step == save_at:
            model_state, optimizer_state = copy.deepcopy((run[0].state_dict(), run[1].state_dict()))
            freezer_state = json.loads(json.dumps(run[2].state_dict()))
        train_step(run, step, num_batches)
        frozen.add(len(run[2]._frozen))
    assert len(frozen) > 1
    assert run[2].thaws

    resumed = make()
    resumed[0].load_state_dict(model_state)
    resumed[1].load_state_dict(optimizer_state)
    resumed[2].load_state_dict(freezer_state)
    for step in range(save_at, 30):
        train_step(resumed, step, num_batches)
    expected, actual = bits(*run[:2]), bits(*resumed[:2])
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    assert run[2].state_dict() == resumed[2].state_dict()
    assert run[2].report() == resumed[2].report()


def thawing_freezer(model):
    return by_norms(model, threshold=0.5, patience=3, thaw_every=10, thaw_on_rise=0.5)


# Frozen after step 5 or so, thawed at 10, 20 and 30: before, frozen, thawed, frozen again.
for_interruptions = pytest.mark.parametrize("save_at", [0, 6, 12, 17, 25])


@for_optimizers
@for_interruptions
@pytest.mark.parametrize("num_batches", [1, 3])
def test_an_interruption_does_not_change_the_run(kind, save_at, num_batches):
    def make():
        model = mlp()
        return model, optimizers()[kind](model.parameters()), thawing_freezer(model)

    assert_interruption_changes_nothing(make, save_at, num_batches)


@for_interruptions
def test_an_interruption_does_not_change_the_run_of_a_prepared_model(save_at):
    """Split weights: the upper half in the model, the lower half and 8-bit states in the optimizer."""

    def make():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        model, optimizer = fullstride.prepare(model, optimizer, precision="bf16", state_precision="8bit")
        return model, optimizer, thawing_freezer(model)

    assert_interruption_changes_nothing(make, save_at, num_batches=2)
    assert make()[0][0].weight.dtype == torch.bfloat16


def test_bf16_parameters_with_main_gradients_freeze_and_thaw():
    model = mlp().bfloat16()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    freezer = by_norms(model, threshold=1e9, patience=2)
    x = batch()[0].bfloat16()

    def accumulate():
        for _ in range(2):
            model(x).float().sum().backward()

    for _ in range(4):
        optimizer.zero_grad()
        accumulate()
        freezer.step()
        optimizer.step()
    assert len(freezer._frozen) == 3
    freezer.thaw()
    optimizer.zero_grad()
    accumulate()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}  # summed in fp32, as before


def test_a_layer_that_freezes_before_the_optimizer_steps_takes_no_further_step():
    model = mlp()
    freezer = traced(model, patience=1)
    give_norms(freezer, 1, 2, 2, 2)
    freezer.step()
    assert [p.grad is None for p in model.parameters()] == [True] * 2 + [False] * 6


# ---- thawing ---------------------------------------------------------------------------------------------------------


def test_a_thawed_layer_learns_again_and_settles_anew():
    freezer = frozen_by(mlp(), 2)
    assert freezer.thaw()
    assert not freezer.thaw()
    assert len(requires_grad(freezer.model)) == 8
    give_norms(freezer, 1, 1, 1, 1)
    assert not freezer.step()  # nothing to compare with yet
    give_norms(freezer, 1, 1, 1, 1)
    assert freezer.step()


def test_thawing_by_schedule():
    freezer = traced(mlp(), patience=2, thaw_every=8)
    counts = []
    for _ in range(15):
        give_norms(freezer, 1, 1, 1, 1)
        freezer.step()
        counts.append(len(freezer._frozen))
    assert counts == [0, 3, 3, 3, 3, 3, 0, 0, 0, 3, 3, 3, 3, 3, 0]  # steps 2 to 16
    assert freezer.thaws == 2


@pytest.mark.parametrize("sign", [1, -1])
def test_a_rise_of_the_smoothed_loss_thaws_once(sign):
    """Losses below zero too: a rise is measured by the size of the lowest one."""
    freezer = traced(mlp(), patience=1)
    freezer.thaw_on_rise, freezer._loss = 0.2, 1.0 if sign > 0 else -1.0
    freezer.options = replace(freezer.options, smoothing=0.5)
    thawed = []
    for loss in (0.5, 1.0, 1.0, 1.0, 1.1, 1.0, 1.5, 1.5, 1.5, 1.5):
        give_norms(freezer, 1, 1, 1, 1)
        before = freezer.thaws
        freezer.step(torch.tensor(loss if sign > 0 else loss - 2))
        thawed.append(freezer.thaws - before)
    assert thawed == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]


def test_a_loss_that_is_not_finite_is_passed_over():
    freezer = traced(mlp(), patience=1)
    freezer.thaw_on_rise = 0.1
    for loss in (1.0, math.nan, math.inf, 1.0):
        give_norms(freezer, 1, 1, 1, 1)
        freezer.step(loss)
    assert len(freezer._frozen) == 3


# ---- parameters of the user, norms with memory -----------------------------------------------------------------------


def test_what_the_user_froze_stays_frozen():
    model = mlp()
    model[0].weight.requires_grad_(False)  # half a layer
    model[2].requires_grad_(False)  # a whole one
    freezer = frozen_by(model, 1)
    assert layers_of(freezer) == [["0"], ["1", "2", "3", "4"], ["5", "6"]]
    model[4].bias.requires_grad_(False)  # while it trains
    give_norms(freezer, 1, 2, 2)
    freezer.step()
    assert requires_grad(model) == ["6.weight", "6.bias"]
    freezer.thaw()
    assert requires_grad(model) == ["0.bias", "4.weight", "6.weight", "6.bias"]


def test_batch_norm_and_dropout_go_on_in_frozen_layers():
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)), nn.Linear(8, 8))
    freezer = by_norms(model, threshold=1e9, patience=1)
    for _ in range(3):
        model(batch()[0]).sum().backward()
        freezer.step()
    assert freezer.report().frozen_layers == ["0.0", "0.1"]
    before = model[0][1].running_mean.clone()
    assert (model[0](batch(1)[0]) == 0).any()
    assert not torch.equal(model[0][1].running_mean, before)


# ---- reports and bad calls -------------------------------------------------------------------------------------------


def test_the_report_counts_updates_left_out():
    freezer = frozen_by(mlp(), 2)  # two steps done, none of them with frozen layers
    assert freezer.report().saved == 0
    for norm in (3.0, 4.0):
        give_norms(freezer, 1, 1, norm, norm)
        freezer.step()
    report = freezer.report()
    assert (report.steps, report.num_layers, report.frozen_parameters, report.total_parameters) == (4, 4, 144, 288)
    assert report.saved == 0.25  # half of the parameters in half of the steps
    # 4 equal layers cost 4 x 3 products less the dx of the first; with two frozen 2 x 1 + 2 x 3 less the third one's.
    assert report.saved_compute == pytest.approx((11 - 7) / 11 / 2)
    assert str(report) == (
        "frozen now: 0, 1, 2 (144 of 288 parameters); over 4 steps 18.2% of the compute and 25.0% of parameter"
        " updates saved, thawed 0 times"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "calm"}, "expected criterion to be one of slowed, below, settled, got 'calm'"),
        ({"threshold": 0}, "expected threshold to be None or a share above 0, got 0"),
        ({"patience": 0}, "expected patience to be at least 1 step, got 0"),
        ({"min_active": 0}, "expected min_active to be at least 1: .* got 0"),
        ({"thaw_every": 0}, "expected thaw_every to be None or at least 1 step, got 0"),
        ({"thaw_on_rise": -1.0}, "expected thaw_on_rise to be None or a share above 0, got -1.0"),
        ({"smoothing": 1.0}, "expected smoothing to be a share from 0 to below 1, got 1.0"),
        ({"layers": [nn.Linear(2, 2)]}, "expected modules of the model as layers, got a foreign Linear at 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DynamicFreezer(mlp(), **options)


def test_a_missing_loss_is_named():
    freezer = traced(mlp())
    freezer.thaw_on_rise = 0.1
    with pytest.raises(ValueError, match=r"expected step\(loss\) with thaw_on_rise"):
        freezer.step()


def test_a_state_of_another_model_is_refused():
    state = traced(mlp(5)).state_dict()
    with pytest.raises(ValueError, match=r"got one with 8, 8\.bias, 8\.weight, which the model does not have"):
        DynamicFreezer(mlp(4)).load_state_dict(state)

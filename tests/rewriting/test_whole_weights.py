"""Whoever takes the weights of a model prepared in bf16 gets the exact fp32 ones, or can ask for them."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

import fullstride
from tests.language_model import Model, batch, make, train

pytestmark = pytest.mark.usefixtures("quiet")


class Mixed(nn.Module):
    """Every kind of module whose weights are split, one of them tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2))


def trained(steps: int = 3):
    """A model, its optimizer, and the exact weights by name: what restore() would give."""
    torch.manual_seed(0)
    model = Mixed()
    model, optimizer = fullstride.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), precision="bf16")
    for i in range(steps):
        step(model, optimizer, i)
    twin = fullstride.restore(pickle.loads(pickle.dumps(model)))
    exact = {name: p.detach().clone() for name, p in twin.named_parameters()}
    halves = dict(model.named_parameters())
    assert sum(p.dtype is torch.bfloat16 for p in halves.values()) == 4
    assert not any(torch.equal(p.float(), exact[n]) for n, p in halves.items() if p.dtype is torch.bfloat16)
    return model, optimizer, exact


def step(model, optimizer, seed: int) -> float:
    tokens = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(seed))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def saved(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def named(model):
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("take", "dtype"),
    [
        pytest.param(lambda model: named(copy.deepcopy(model)), torch.float32, id="deepcopy"),
        pytest.param(lambda model: named(pickle.loads(pickle.dumps(model))), torch.float32, id="pickle"),
        pytest.param(lambda model: named(model.float()), torch.float32, id="float"),
        pytest.param(lambda model: named(model.to(torch.float32)), torch.float32, id="to"),
        pytest.param(lambda model: named(model.double()), torch.float64, id="double"),
        pytest.param(lambda model: named(model.half()), torch.float16, id="half"),
        pytest.param(lambda model: named(model.bfloat16()), torch.bfloat16, id="bfloat16"),
        pytest.param(lambda model: model.state_dict(), torch.float32, id="state_dict"),
        pytest.param(saved, torch.float32, id="torch.save"),
        pytest.param(lambda model: named(swa_utils.AveragedModel(model).module), torch.float32, id="AveragedModel"),
    ],
)
def test_weights_are_taken_whole(take, dtype):
    model, _, exact = trained()
    taken = take(model)
    for name, value in exact.items():
        assert taken[name].dtype is dtype
        assert torch.equal(taken[name], value.to(dtype)), name


@pytest.mark.parametrize("change", [lambda m: m.to("cpu"), nn.Module.cpu, nn.Module.share_memory, nn.Module.eval])
def test_what_changes_no_dtype_leaves_the_halves_alone(change):
    model, optimizer, exact = trained()
    twin, twin_optimizer, _ = trained()
    change(model)
    assert "4 of 10 parameters split" in str(fullstride.explain(model))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in exact.items())
    assert step(model.train(), optimizer, 5) == step(twin, twin_optimizer, 5)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


@pytest.mark.parametrize("change", [nn.Module.float, nn.Module.bfloat16])
def test_a_model_whose_dtype_was_changed_trains_on(change):
    model, optimizer, _ = trained()
    change(model)
    assert "parameters split" not in str(fullstride.explain(model))
    before = named(model)["head.bias"].clone()
    assert step(model, optimizer, 5) < 3
    assert not torch.equal(named(model)["head.bias"], before)
    fullstride.restore(model)


def test_float_before_the_step_takes_the_gradients_along():
    model, optimizer, _ = trained()
    twin, twin_optimizer, _ = trained()
    for m in (model, twin):
        m(torch.arange(6).view(1, 6)).square().sum().backward()
    model.float()
    optimizer.step()
    twin_optimizer.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)


def test_a_model_that_is_emptied_and_loaded_steps_as_before():
    model, optimizer, _ = trained()
    twin, twin_optimizer, _ = trained()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.to_empty(device="cpu")
    model.load_state_dict(state)
    for m, each in ((model, optimizer), (twin, twin_optimizer)):
        step(m, each, 5)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    assert model.head._split_lo["weight"] is model.embed._split_lo["weight"]
    assert model.head._split_lo["weight"] is optimizer.state[model.head.weight]["weight_lo"]


def test_another_order_in_memory_is_that_of_whole_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    stock = copy.deepcopy(model)
    model, optimizer = fullstride.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), precision="bf16")
    model.to(memory_format=torch.channels_last)
    assert torch.equal(model[0].weight, stock[0].weight)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[2].weight.dtype is torch.bfloat16
    model(torch.randn(2, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    moved = (model[0].weight - stock[0].weight).abs()
    assert moved.min() > 0
    assert moved.max() < 1.1e-3  # AdamW's first step: lr each
    fullstride.restore(model)


def average(weights: list[dict]) -> dict:
    """By hand, over exact weights: the first, then 0.9 of what there is and 0.1 of the next."""
    result = {name: value.clone() for name, value in weights[0].items()}
    for following in weights[1:]:
        for name, value in following.items():
            result[name].lerp_(value, 0.1)
    return result


def exact_weights(model) -> dict:
    return {name: model.state_dict()[name].clone() for name, _ in model.named_parameters()}


def lerp_parameters(ema, model):
    for average, p in zip(ema.parameters(), model.parameters(), strict=True):
        average.lerp_(p.detach(), 0.1)


def lerp_state(ema, model):
    averages, state = ema.state_dict(), model.state_dict()
    for name, _ in ema.named_parameters():  # a tied weight once
        averages[name].lerp_(state[name], 0.1)


def by_averaged_model(model):
    multi = swa_utils.get_ema_multi_avg_fn(0.9)
    ema = swa_utils.AveragedModel(model, multi_avg_fn=multi)
    ema.update_parameters(model)
    return ema.module, ema.update_parameters


def by_state(model):
    ema = copy.deepcopy(model)
    return ema, torch.no_grad()(lambda model: lerp_state(ema, model))


def by_parameters(model):
    ema = copy.deepcopy(model)

    @torch.no_grad()
    def update(model):
        with fullstride.whole_weights(model):
            lerp_parameters(ema, model)

    return ema, update


@pytest.mark.parametrize("make_average", [by_averaged_model, by_state, by_parameters])
def test_an_average_of_weights_is_one_of_whole_weights(make_average):
    model, optimizer, _ = trained()
    seen = [exact_weights(model)]
    ema, update = make_average(model)
    for i in range(4):
        step(model, optimizer, i)
        update(model)
        seen.append(exact_weights(model))
    assert all(torch.equal(value, named(ema)[name]) for name, value in average(seen).items())
    assert ema.eval()(torch.arange(6).view(1, 6)).isfinite().all()


def test_averaging_does_not_disturb_training():
    model, optimizer, _ = trained()
    twin, twin_optimizer, _ = trained()
    _, update = by_averaged_model(model)
    for i in range(3):
        assert step(model, optimizer, i) == step(twin, twin_optimizer, i)
        update(model)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


def test_what_is_written_into_whole_weights_stays():
    model, optimizer, exact = trained()
    with fullstride.whole_weights(model), torch.no_grad():
        assert all(torch.equal(value, named(model)[name]) for name, value in exact.items())
        for p in model.parameters():
            p.mul_(1.001)
    assert model.head.weight.dtype is torch.bfloat16
    assert all(torch.equal(value * 1.001, model.state_dict()[name]) for name, value in exact.items())
    assert step(model, optimizer, 5) < 3


@pytest.mark.parametrize("end", [fullstride.restore, lambda model: model.float()], ids=["restore", "float"])
def test_what_ends_the_split_inside_ends_it_for_good(end):
    model, optimizer, exact = trained()
    with fullstride.whole_weights(model):
        end(model)
    assert all(torch.equal(value, named(model)[name]) for name, value in exact.items())
    step(model, optimizer, 5)  # in fp32
    twin, twin_optimizer, _ = trained()
    end(twin)
    step(twin, twin_optimizer, 5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_part_that_ends_its_split_inside_takes_the_tied_weight_along():
    model, optimizer, exact = trained()
    with fullstride.whole_weights(model):
        model.head.float()
    assert torch.equal(model.embed.weight, exact["embed.weight"])
    assert model.conv.weight.dtype is torch.bfloat16
    assert step(model, optimizer, 5) < 3


def test_whole_weights_of_a_model_that_has_no_halves_are_its_own():
    model = nn.Linear(2, 2)
    before = model.weight.data_ptr()
    with fullstride.whole_weights(model):
        assert model.weight.data_ptr() == before


def test_averages_are_torchs_own_again_after_restore():
    own = swa_utils.AveragedModel.update_parameters
    model, _, _ = trained()
    assert swa_utils.AveragedModel.update_parameters is not own
    fullstride.restore(model)
    assert swa_utils.AveragedModel.update_parameters is own


def test_a_copy_can_be_prepared_with_an_optimizer_of_its_own():
    model, _ = fullstride.prepare(*make(), precision="bf16")
    twin = fullstride.restore(copy.deepcopy(model))
    assert isinstance(twin, Model)
    twin, optimizer = fullstride.prepare(twin, torch.optim.AdamW(twin.parameters()), precision="bf16")
    train(twin, optimizer, range(2))
    assert twin(batch(0)).isfinite().all()

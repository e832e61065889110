"""Split weights of a model: exact, tied, saved and loaded."""

import copy
import io
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

from fullstride.rewriting import rewrite, split_weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


def make(model: nn.Module) -> dict:
    """Splits the model; returns its exact weights as they were."""
    exact = {name: p.detach().clone() for name, p in model.named_parameters()}
    rewrite(model)
    split_weights.split_weights(model)
    return exact


def test_a_split_parameter_is_the_same_object_rounded_to_nearest_bf16():
    model = nn.Sequential(nn.Linear(5, 3))
    weight = model[0].weight
    exact = make(model)
    assert model[0].weight is weight
    assert torch.equal(weight.data, exact["0.weight"].bfloat16())


def test_biases_and_norms_stay_fp32():
    model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.BatchNorm1d(3))
    make(model)
    assert {n for n, p in model.named_parameters() if p.dtype == torch.bfloat16} == {"0.weight"}


def test_a_weight_is_not_split_when_a_module_that_is_not_known_owns_it_too():
    class Odd(nn.Module):
        def __init__(self, weight) -> None:
            super().__init__()
            self.weight = weight

    linear = nn.Linear(4, 4)
    model = nn.ModuleList([linear, Odd(linear.weight)])
    rewrite(model)
    assert split_weights.split_weights(model) == {}
    assert linear.weight.dtype == torch.float32


def test_merge_gives_every_bit_back():
    model = Tied()
    exact = make(model)
    split_weights.merge_weights(model)
    assert all(torch.equal(p, exact[name]) for name, p in model.named_parameters())
    assert not any("_split_lo" in m.__dict__ or m._state_dict_hooks for m in model.modules())


def test_state_dict_gives_exact_fp32_under_the_same_keys():
    model = Tied()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_tied_weights_share_their_memory_in_the_state_dict():
    model = Tied()
    make(model)
    state = model.state_dict()
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_state_dict_that_is_filled_again_has_the_weights_of_now(kind):
    model = Tied()
    make(model)
    state = kind()
    model.state_dict(destination=state)
    with torch.no_grad():
        model.embed.weight.copy_(model.embed.weight * 2)
    model.state_dict(destination=state)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(3, 5))), id="another parameter"),
        pytest.param(lambda layer: layer.double(), id="another dtype"),
    ],
)
def test_a_weight_that_is_split_no_longer_is_saved_and_merged_as_it_is(change):
    model = nn.Sequential(nn.Linear(5, 3))
    make(model)
    change(model[0])
    weight = next(model.parameters()).detach().clone()
    assert torch.equal(model.state_dict()["0.weight"], weight)
    split_weights.merge_weights(model)
    assert torch.equal(model[0].weight, weight)


def test_zeros_written_into_a_split_weight_are_zeros():
    """Also where the lower half is negative: as a pattern the sum of both would be a NaN."""
    model = nn.Sequential(nn.Linear(16, 16))
    make(model)
    next(model.parameters()).data.zero_()
    assert model.state_dict()["0.weight"].abs().max() < 1e-37  # what is left of a positive half is a denormal


def test_loading_fp32_weights_splits_them():
    model, other = Tied(), Tied()
    make(model)
    model.load_state_dict(other.state_dict())
    split_weights.merge_weights(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_saving_and_loading_keeps_every_bit():
    model, other = Tied(), Tied()
    exact = make(model)
    make(other)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    split_weights.merge_weights(other)
    assert all(torch.equal(p, exact[name]) for name, p in other.named_parameters())


def test_a_weight_of_the_wrong_shape_is_named_by_torch_as_usual():
    model = Tied()
    make(model)
    state = dict(model.state_dict())
    state["head.weight"] = torch.zeros(3, 3)
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        model.load_state_dict(state)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_a_model_has_lower_halves_of_its_own(duplicate):
    model = Tied()
    exact = make(model)
    twin = duplicate(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    split_weights.merge_weights(twin)
    assert all(torch.equal(p, exact[name]) for name, p in twin.named_parameters())

"""States of any nesting through tensors and JSON: every bit and every type comes back."""

import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fullstride
from fullstride.optim import SGD, AdamW, Lamb, Lookahead
from fullstride.train.checkpoints.flat_state import flatten, unflatten
from fullstride.train.checkpoints.store import Snapshot, Store

from ...optim.training import assert_equal, parameters, run


def through_json(state):
    tensors, document = flatten(state)
    return unflatten(tensors, json.loads(json.dumps(document, allow_nan=False)))


def same(a, b):
    """Equal in type and in every bit, order of dicts included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return a.dtype is b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, float):
        return (a != a and b != b) or struct.pack("d", a) == struct.pack("d", b)
    return a == b


tensors = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]).flatmap(
    lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: torch.ones(shape).to(dtype))
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | tensors
names = st.text() | st.sampled_from(["$tuple", "$items", "$tensor", "$float", "a.b", "a", "b"])
keys = names | st.integers() | st.tuples(st.integers(), st.text())
states = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=12,
)


@given(states)
def test_any_state_comes_back_as_it_was(state):
    assert same(through_json(state), state)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0, 5e-324, 0.1, 1e308, 2**70, -1])
def test_numbers_keep_every_bit(value):
    assert same(through_json({"x": value}), {"x": value})


def test_names_of_tensors_say_where_they_are():
    tensors, _ = flatten({"state": {0: {"exp_avg": torch.ones(2)}}, "more": [torch.zeros(1)]})
    assert list(tensors) == ["state.0.exp_avg", "more.0"]


def test_places_that_read_alike_stay_apart():
    state = {"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}, 0: torch.tensor(3), "0": torch.tensor(4)}
    assert same(through_json(state), state)


def test_one_tensor_in_two_places_stays_one():
    x = torch.ones(3)
    state = through_json({"a": x, "b": [x]})
    assert state["a"] is state["b"][0]


def test_what_has_no_place_in_files_is_refused_with_its_place():
    with pytest.raises(TypeError, match=r"got set at groups\.0\.tags"):
        flatten({"groups": [{"tags": {1, 2}}]})


def test_tensors_are_not_copied_and_not_parameters():
    p = torch.nn.Parameter(torch.ones(3))
    tensors, _ = flatten([p])
    assert tensors["0"].data_ptr() == p.data_ptr()
    assert not tensors["0"].requires_grad


# ---- optimizers through a checkpoint ---------------------------------------------------------------------------------

OPTIMIZERS = {
    "adamw fp32": lambda params: AdamW(params, lr=1e-2, clip=5.0),
    "adamw bf16": lambda params: AdamW(params, lr=1e-2, state_precision="bf16"),
    "adamw 8bit": lambda params: AdamW(params, lr=1e-2, state_precision="8bit", seed=3),
    "amsgrad": lambda params: AdamW(params, lr=1e-2, amsgrad=True),
    "lamb": lambda params: Lamb(params, state_precision="bf16"),
    "lookahead": lambda params: Lookahead(AdamW(params, lr=1e-2), k=3),
    "lookahead around torch's": lambda params: Lookahead(torch.optim.AdamW(params, lr=1e-2), k=3),
    "sgd": lambda params: SGD(params, lr=1e-2, momentum=0.9),
    "torch's": lambda params: torch.optim.AdamW(params, lr=1e-2),
}


def through_a_checkpoint(folder, weights, optimizer):
    """(weights, state of the optimizer) as they are after saving and loading."""
    tensors, document = flatten(optimizer.state_dict())
    store = Store(folder)
    store.save(Snapshot(4, {"model": weights, "optimizer": tensors}, {"optimizer": document}))
    loaded = store.newest()
    return loaded.tensors["model"], unflatten(loaded.tensors["optimizer"], loaded.documents["optimizer"])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_run_continues_to_the_bit(kind, tmp_path):
    params = parameters(0)
    optimizer = OPTIMIZERS[kind](params)
    run(optimizer, params, range(4))
    weights = {str(i): p.detach() for i, p in enumerate(params)}
    weights, state = through_a_checkpoint(tmp_path, weights, optimizer)
    run(optimizer, params, range(4, 8))

    others = [torch.nn.Parameter(weights[str(i)].clone()) for i in range(len(params))]
    other = OPTIMIZERS[kind](others)
    other.load_state_dict(state)
    run(other, others, range(4, 8))
    assert_equal(others, params)


def prepared(seed, state_precision):
    torch.manual_seed(seed)
    first, *others = (torch.nn.Linear(20, 20) for _ in range(3))
    others[-1].weight = first.weight
    model = torch.nn.Sequential(first, torch.nn.ReLU(), *others)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return fullstride.prepare(model, optimizer, precision="bf16", state_precision=state_precision)


def train(model, optimizer, steps):
    for step in steps:
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("state_precision", ["fp32", "bf16", "8bit"])
def test_a_prepared_bf16_model_with_tied_weights_continues_to_the_bit(state_precision, tmp_path):
    model, optimizer = prepared(0, state_precision)
    train(model, optimizer, range(4))
    weights, state = through_a_checkpoint(tmp_path, model.state_dict(), optimizer)
    train(model, optimizer, range(4, 8))

    other, other_optimizer = prepared(1, state_precision)
    other.load_state_dict(weights)
    other_optimizer.load_state_dict(state)
    train(other, other_optimizer, range(4, 8))
    expected = model.state_dict()
    assert other.state_dict().keys() == expected.keys()
    assert_equal(other.state_dict().values(), expected.values())

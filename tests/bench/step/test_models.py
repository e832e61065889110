"""The models and the data that the benchmark of a step trains."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

from fullstride.bench.step import cases as step_cases
from fullstride.bench.step.cases import CASES
from fullstride.bench.step.models import FASTSPEECH2, IGNORED, WORKLOADS
from fullstride.models import fastspeech2, llama
from fullstride.recipes.fastspeech2 import Model as SpeechShape


def test_every_case_is_a_workload():
    others = {*step_cases.TEST_MODELS, *step_cases.OTHER_MODELS}
    assert {case.config()["model"] for case in CASES} == WORKLOADS.keys() - others


def test_the_llama_is_the_one_of_the_recipe():
    model = WORKLOADS["tiny-llama"].build()
    assert Path(inspect.getfile(type(model))).samefile(llama.__file__)
    tokens, targets = WORKLOADS["tiny-llama"].batch(torch.Generator().manual_seed(0))
    expected = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    assert torch.equal(WORKLOADS["tiny-llama"].loss(model, tokens, targets), expected)


def test_fastspeech2_is_the_one_of_the_recipe():
    model = WORKLOADS["tiny-speech"].build()
    assert Path(inspect.getfile(type(model))).samefile(fastspeech2.__file__)
    shape = SpeechShape().shape()
    assert {name: shape[name] for name in FASTSPEECH2 if name != "phonemes"} | {"phonemes": 50} == FASTSPEECH2


def test_sentences_of_a_batch_fill_one_shape_but_for_a_few_percent_of_padding():
    workload = WORKLOADS["fastspeech2"]
    phonemes, _, durations, pitch, energy, mel = workload.batch(torch.Generator().manual_seed(3))
    assert (phonemes.shape, mel.shape) == ((16, 40), (16, 260, 80))
    assert durations.sum() == workload.num_units
    assert 0.04 < 1 - workload.num_units / (16 * 260) < 0.05
    assert durations.sum(1).max() == 260
    assert not torch.equal(durations.sum(1).sort().values, durations.sum(1))  # in no order
    for values in (durations, pitch, energy):
        assert not values[phonemes == 0].any()
    assert (durations >= 0).all()


@pytest.mark.parametrize("name", WORKLOADS)
def test_data_is_a_function_of_the_seed(name):
    first, again = (WORKLOADS[name].batch(torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], WORKLOADS[name].batch(torch.Generator().manual_seed(4))[0])


def test_masked_words_are_to_be_predicted_and_no_others():
    inputs, labels = WORKLOADS["bert"].batch(torch.Generator().manual_seed(0))
    chosen = labels != IGNORED
    assert 0.1 < chosen.float().mean() < 0.2
    assert 0.7 < (inputs[chosen] == 30521).float().mean() < 0.9
    assert int((inputs[~chosen] == 30521).sum()) <= 1  # the last word of all, by chance


@pytest.mark.parametrize(
    ("name", "millions"),
    [("mlp", 49.8), ("llama 4 x 256", 109.5), ("llama 1 x 1024", 109.5), ("bert", 109.5), ("fastspeech2", 9.8)],
)
def test_the_models_have_the_sizes_of_their_names(name, millions):
    with torch.device("meta"):
        model = WORKLOADS[name].build()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    if name in ("llama 4 x 256", "llama 1 x 1024", "bert"):  # tied
        assert model.head.weight is next(m for m in model.modules() if isinstance(m, nn.Embedding)).weight

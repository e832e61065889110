"""Where a training step of CLIP goes: which operation is of which kind, and the program with a model of few weights."""

import json
import sys

import pytest
from benchmarks import clip_profile
from benchmarks.clip_profile import KINDS, OPTIMIZER, OURS, REST, kind_of

from fullstride.bench.step import side as step_side
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT, Case

NAMES = {
    "attention": [
        "AttentionFunction", "AttentionFunctionBackward", "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    ],
    "contrastive loss": [
        "ContrastiveLossFunction", "ContrastiveLossFunctionBackward", "aten::_log_softmax", "aten::nll_loss_backward",
        "aten::_log_softmax_backward_data", "aten::cross_entropy_loss",
    ],
    "patch embedding": ["aten::mkldnn_convolution", "aten::convolution_backward", "aten::conv2d"],
    "products": ["LinearFunction", "LinearFunctionBackward", "aten::addmm", "aten::mm", "mkldnn::_linear_pointwise"],
    "layer norms": [
        "LayerNormFunction", "LayerNormFunctionBackward", "aten::native_layer_norm", "aten::native_layer_norm_backward",
    ],
    "GELU": ["aten::gelu", "aten::gelu_backward"],
    "embeddings": ["EmbeddingFunction", "aten::embedding_dense_backward", "aten::index"],
    "copies and sums": ["aten::copy_", "aten::_to_copy", "aten::add", "aten::sum", "aten::mul", "aten::cat"],
    REST: ["forward, between operations", "aten::view", "aten::transpose", "torch::autograd::AccumulateGrad"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "operation"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_every_operation_has_its_kind(kind, operation):
    assert kind_of(operation) == kind


def test_every_kind_is_in_the_list_above():
    assert {*NAMES, OPTIMIZER} == {*KINDS}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"fullstride": "fp32"},
            {
                "LinearFunction": "products", "LinearFunctionBackward": "products", "AttentionFunction": "attention",
                "AttentionFunctionBackward": "attention", "LayerNormFunction": "layer norms",
                "ContrastiveLossFunction": "contrastive loss", "EmbeddingFunction": "embeddings",
            },
        ),
        (
            {"fused": True},
            {
                "aten::addmm": "products", "aten::mm": "products", "aten::gelu": "GELU", "aten::gelu_backward": "GELU",
                "aten::native_layer_norm": "layer norms", "aten::native_layer_norm_backward": "layer norms",
                "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
                "aten::_log_softmax": "contrastive loss", "aten::convolution_backward": "patch embedding",
                "aten::embedding": "embeddings",
            },
        ),
    ],
    ids=["ours", "stock"],
)  # fmt: skip
def test_what_a_real_step_does_has_these_names(settings, expected, num_threads):
    """Or the patterns would look for what is called otherwise by now, and all of it be `all else`."""
    num_threads(1)
    training = step_side.Training(Case("tiny-clip").config(**settings))
    training.run(1)
    seen = {name for name, _, _ in training.profile(1)["ops"]}
    assert expected.keys() <= seen
    assert {name: kind_of(name) for name in expected} == expected
    functions = {name for name in seen if name.endswith(("Function", "FunctionBackward")) and "::" not in name}
    assert not {name for name in functions if kind_of(name) == REST}


def test_what_the_optimizer_and_clipping_do_is_theirs_whatever_it_is_called():
    ops = [["forward", "aten::mul", 0.25], ["optimizer", "aten::mul_", 0.5], ["clip", "aten::sum", 0.125]]
    found = clip_profile._by_kind({"milliseconds": 8.0, "by_phase": ops})
    assert found["copies and sums"] == 2
    assert found[OPTIMIZER] == 5
    assert sum(found.values()) == 7


def test_the_program_prints_a_table_and_writes_what_is_in_it(tmp_path, monkeypatch, capsys):
    words = ["clip_profile", "--tiny", "--rounds", "1", "--steps", "1", "--json", str(tmp_path / "profile.json")]
    monkeypatch.setattr(sys, "argv", words)
    clip_profile.main()
    content = json.loads((tmp_path / "profile.json").read_text())
    assert (content["model"], content["rounds"], content["steps"]) == ("tiny-clip", 1, 1)
    assert [side["name"] for side in content["sides"]] == [OURS, STOCK_DEFAULT, STOCK_BEST]
    for side in content["sides"]:
        parts = {kind: ms for kind, [ms] in side["kinds_ms"].items()}
        assert tuple(parts) == KINDS
        assert side["profiled_ms"] == [sum(parts.values())]
        assert all(parts[kind] > 0 for kind in (OPTIMIZER, "attention", "contrastive loss", "products"))
    lines = capsys.readouterr().out.splitlines()
    for name in (*KINDS, "all, under the profiler", "a step without it"):
        assert sum(line.startswith(f"| {name} |") for line in lines) == 1

"""The parts of a training step."""

import pytest
from benchmarks import llama_profile
from benchmarks.llama_profile import (
    ATTENTION,
    EMBEDDING,
    GLU,
    LOSS,
    NORM,
    OPTIMIZER,
    OTHER,
    PARTS,
    PRODUCTS,
    REST,
    ROPE,
)

from fullstride import _native
from fullstride.bench.step import benchmark as step
from fullstride.bench.step import models as step_models


@pytest.mark.parametrize(
    ("name", "ancestors", "part"),
    [
        ("kernel gemm", ["LinearFunction"], PRODUCTS),
        ("aten::mm", ["LinearFunctionBackward"], PRODUCTS),
        ("aten::bmm", ["aten::matmul", "AttentionFunctionBackward"], ATTENTION),
        ("kernel rms_norm_backward", [], NORM),
        ("aten::add_", ["Optimizer.step#AdamW.step"], OPTIMIZER),
        ("Optimizer.step#AdamW.step", [], OPTIMIZER),
        ("kernel grad_norm", [], OPTIMIZER),
        ("aten::add", ["AddBackward0"], OTHER),
        ("kernel convert", [], OTHER),
        ("aten::empty", ["LinearFunction"], REST),
        ("LinearFunction", [], REST),
    ],
)
def test_every_operation_has_its_part(name, ancestors, part):
    assert llama_profile.part_of(name, ancestors) == part


def test_the_parts_are_all_of_the_step():
    if not _native.available():
        pytest.skip("without kernels there is nothing to record")
    kernels = dict(_native.kernels.__dict__)
    _, step = llama_profile.prepared(step_models.WORKLOADS["tiny-llama"], "fp32")
    parts, bare = llama_profile.profile(step, num_steps=2)
    assert tuple(parts) == PARTS
    assert bare > 0
    for part in (PRODUCTS, ATTENTION, NORM, ROPE, GLU, LOSS, EMBEDDING, OPTIMIZER, REST):
        assert parts[part] > 0, part
    assert kernels == _native.kernels.__dict__  # as they were
    shares = [line.split("|")[3] for line in llama_profile.markdown(parts, dict.fromkeys(PARTS, 0.0))[2:-1]]
    assert sum(float(share.strip().rstrip("%")) for share in shares) == pytest.approx(100, abs=0.6)


def test_needs_are_those_of_the_model():
    needs = llama_profile.needs(step_models.STORIES110M, 1024, 256, 109_529_856, item=4)
    counted = step.counted("llama 4 x 256")
    assert (needs[PRODUCTS], needs[ATTENTION]) == (counted.products, counted.attention)
    assert needs[NORM] == 25 * 8 * 1024 * 768 * 4
    seconds = llama_profile.seconds_needed(needs, 100.0, {"write": 10.0, "update": 20.0})
    assert seconds[PRODUCTS] == pytest.approx(needs[PRODUCTS] / 100e9)
    assert seconds[OPTIMIZER] == pytest.approx(32 * 109_529_856 / 20e9)
    assert seconds[GLU] == pytest.approx(needs[GLU] / 10e9)

"""That oneDNN is capped where torch's bf16 would die, in time or not, and nowhere else."""

import os
import subprocess
import sys

import pytest

from fullstride.machine import onednn

NAMES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "FULLSTRIDE_ONEDNN_CAP")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Without a cap, and none stays."""
    monkeypatch.setattr(os, "environ", os.environ.copy())  # putenv is not called for this one
    for name in NAMES:
        os.environ.pop(name, None)
    monkeypatch.setattr(onednn, "_torch_was_there", False)


def hidden():
    return True


def test_nothing_is_capped_where_torch_is_healthy():
    onednn.cap(lambda: False)
    assert onednn.limit() is None
    assert not onednn.is_late()
    assert onednn.describe() == ""


def test_a_cpu_without_palettes_is_capped():
    onednn.cap(hidden)
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert onednn.describe() == "oneDNN capped at AVX512_CORE_BF16: this CPU shows AMX without its palettes"


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_cap_of_the_user_is_respected(name):
    os.environ[name] = "AVX2"
    before = dict(os.environ)
    onednn.cap(hidden)
    assert dict(os.environ) == before == onednn.user_environment()
    assert onednn.describe() == "oneDNN limited to AVX2 by the environment"
    assert not onednn.is_late()  # nobody's business but the user's


def test_stock_pytorch_gets_the_environment_of_the_user():
    before = dict(os.environ)
    onednn.cap(hidden)
    assert onednn.user_environment() == before
    onednn.cap(hidden)  # as in a program that inherited the cap
    assert onednn.user_environment() == before


CODE = """
import os, sys
import torch
{before}
from fullstride.machine import onednn
onednn.CAP = {cap!r}  # that of AMX shows nothing on a CPU without it
onednn.cap(lambda: True)
print(onednn.is_ours(), torch.ops.mkldnn._is_mkldnn_bf16_supported(), flush=True)
os.system("echo $ONEDNN_MAX_CPU_ISA")
torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
"""


@pytest.mark.skipif(not onednn.cpuid._is_x86(), reason="the cap is x86's")
def test_a_cap_is_read_only_before_the_first_product():
    """The observable that is_late() rests on, by the op for bf16, which follows a cap at AVX2 on every CPU."""
    environment = onednn.user_environment()
    clean = {name: value for name, value in environment.items() if name not in NAMES}

    def run(before, cap="AVX2"):
        code = CODE.format(before=before, cap=cap)
        done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
        return done.stdout.split()

    ours, supported, seen = run(before="torch.ones(3).sum()")
    assert (ours, supported, seen) == ("True", "False", "AVX2")
    uncapped = run(before="", cap="DEFAULT")[1]
    assert run(before="torch.ones(4, 4) @ torch.ones(4, 4)")[1] == uncapped


@pytest.mark.parametrize(("answer", "late"), [(True, True), (False, False)])
def test_fp16_beyond_the_cap_means_it_came_too_late(monkeypatch, answer, late):
    import torch

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: answer, raising=False)
    onednn.cap(hidden)
    assert onednn.is_late() is late


@pytest.mark.parametrize("first", [True, False])
def test_without_that_op_the_order_of_imports_decides(monkeypatch, first):
    import torch

    def refuse():
        raise RuntimeError("no such op")

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", refuse, raising=False)
    if not first:
        monkeypatch.delitem(sys.modules, "torch")
    onednn.cap(hidden)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert onednn.is_late() is first

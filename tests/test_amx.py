"""The matrix unit in processes as users have them: threads, forks, spawned workers, handlers of signals.

Where the CPU has AVX512-BF16 but no AMX, csrc/tests/emulate_amx.cc executes the instructions in software.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fullstride import _native

from .patience import PATIENCE

EMULATOR = Path(__file__).parents[1] / "csrc" / "tests" / "emulate_amx.cc"

CHECK = """
import faulthandler, os, sys, threading
faulthandler.enable()  # a handler and a signal stack of its own
import torch
from fullstride import _native
from fullstride.ops.attention import attention
from fullstride.ops.gemm import gemm

def check(seed=0):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(s, generator=generator).bfloat16() for s in ((37, 70), (70, 45)))
    assert (gemm(a, b, dtype=torch.float32) - a.float() @ b.float()).abs().max() < 1e-4
    q = torch.randn(1, 2, 40, 16, generator=generator).bfloat16()
    exact = torch.nn.functional.scaled_dot_product_attention(*[q.float()] * 3, is_causal=True)
    assert (attention(q, q, q, is_causal=True).float() - exact).abs().max() < 2e-2

if __name__ == "__main__":
    assert _native.isa() == "amx", _native.isa()
    torch.set_num_threads(2)
    check()
"""

CASES = {
    "threads": """
    threads = [threading.Thread(target=check, args=(i,)) for i in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
""",
    "a fork": """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        a = torch.ones(33, 40).bfloat16()
        os._exit(0 if (gemm(a, a.t(), dtype=torch.float32).numpy() == 40).all() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    check()
""",
    "a spawned worker": """
    import multiprocessing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(check, (5,))
""",
    "faulthandler turned on again": """
    faulthandler.disable()
    faulthandler.enable(all_threads=True)
    check(3)
""",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    names = [name for name, able in _native.isas().items() if able]
    if "amx" in names:
        return {}
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if "avx512_bf16" not in names or "amx" not in _native.isas() or compiler is None or not EMULATOR.exists():
        pytest.skip("needs AMX, or AVX512-BF16 and a compiler to emulate it")
    library = tmp_path_factory.mktemp("amx") / "emulate_amx.so"
    flags = ["-std=c++20", "-O2", "-mavx512f", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(EMULATOR), "-o", str(library)], check=True, timeout=PATIENCE)
    return {"LD_PRELOAD": str(library)}


@pytest.mark.parametrize("case", CASES)
def test_products_and_attention_work_with(case, environment, tmp_path):
    script = tmp_path / "check.py"
    script.write_text(CHECK + CASES[case])
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **environment, "FULLSTRIDE_ISA": "amx"}, capture_output=True,
        text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_loading_the_library_does_not_take_the_matrix_unit(environment):
    code = "from fullstride import _native as n; print(n.isa(), n.step_up(), n.isa(), n.fall_back(), n.isa())"
    without = {name: value for name, value in os.environ.items() if name != "FULLSTRIDE_ISA"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**without, **environment}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["avx512_bf16", "True", "amx", "True", "avx512_bf16"], done.stderr

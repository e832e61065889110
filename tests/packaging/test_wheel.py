"""The built wheel, in an environment that has never seen this checkout."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ["csrc", "src", "CMakeLists.txt", "pyproject.toml", "README.md"]
USE_A_KERNEL = """
import torch
from fullstride import _native
from fullstride.ops.layer_norm import layer_norm
x = torch.randn(64, 1000)
torch.testing.assert_close(layer_norm(x), torch.nn.functional.layer_norm(x, (1000,)))
print(_native.isa())
"""


def run(*command, **environment):
    """The finished process; a failure shows what it printed."""
    env = {**os.environ, **environment}
    for name in ("PYTHONPATH", "FULLSTRIDE_LIBRARY", "FULLSTRIDE_ISA", "FULLSTRIDE_NATIVE"):
        env.pop(name, None)
    done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build_wheel(folder, **environment):
    """A wheel from a copy of the sources, in pip's isolated build, without anything left from earlier builds."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, sources, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory):
    """The interpreter of a new environment that holds torch and nothing of ours."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "torch", "numpy")
    yield python
    shutil.rmtree(folder)  # a gigabyte


def test_wheel_serves_every_python_and_holds_one_library(wheel):
    assert "-py3-none-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".so", ".dylib"))] == ["fullstride/_lib/libfullstride.so"]
    assert "fullstride/_lib/fullstride.h" in names


def test_wheel_runs_its_kernels_in_a_clean_environment(wheel, clean_python):
    run(clean_python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel)
    done = run(clean_python, "-W", "error", "-c", USE_A_KERNEL)
    assert done.stdout.strip() in {"portable", "avx2", "avx512", "avx512_bf16", "neon", "neon_bf16"}


def test_without_a_compiler_the_package_installs_and_says_once_that_it_uses_torch(clean_python, tmp_path):
    wheel = build_wheel(tmp_path, CXX="/no/such/compiler")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    run(clean_python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel)
    done = run(clean_python, "-W", "always", "-c", USE_A_KERNEL + "layer_norm(x)\n")
    assert done.stdout.strip() == "torch"
    assert done.stderr.count("using torch instead") == 1

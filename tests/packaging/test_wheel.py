"""The built wheel, in an environment that has never seen this checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ["csrc", "src", "tests", ".gitignore", "CMakeLists.txt", "LICENSE", "pyproject.toml", "README.md"]
LITTER = [
    "runs/demo/metrics.jsonl",
    "build/tests/CMakeCache.txt",
    ".hypothesis/unicode_data",
    ".pytest_cache/README.md",
    "src/fullstride/__pycache__/cli.cpython-311.pyc",
]
BUILD_SDIST = """
import os, sys
from scikit_build_core.build import build_sdist
os.chdir(sys.argv[1])
build_sdist(sys.argv[2])
"""
USE_A_KERNEL = """
import torch
from fullstride import _native
from fullstride.ops.layer_norm import layer_norm
x = torch.randn(64, 1000)
torch.testing.assert_close(layer_norm(x), torch.nn.functional.layer_norm(x, (1000,)))
print(_native.isa())
"""


IMPORT_ALL = """
import importlib, pkgutil, fullstride
for module in pkgutil.walk_packages(fullstride.__path__, "fullstride."):
    if module.name == "fullstride.__main__":
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        print(module.name, "says", error)
"""
MISSING = r"fullstride\.integrations\.(\w+) says fullstride\.integrations\.\1: expected .*; pip install .*"


def run(*command, **environment):
    """The finished process; a failure shows what it printed."""
    env = {**os.environ, **environment}
    for name in ("PYTHONPATH", "FULLSTRIDE_LIBRARY", "FULLSTRIDE_ISA", "FULLSTRIDE_NATIVE"):
        env.pop(name, None)
    done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source archive of a checkout in which someone has trained and tested."""
    folder = tmp_path_factory.mktemp("sdist")
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)
    for name in LITTER:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).touch()
    run(sys.executable, "-c", BUILD_SDIST, sources, folder)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def build_wheel(sdist, folder, **environment):
    """A wheel from the source archive, in pip's isolated build. It holds one kernel: that all of them compile in such
    a build was seen when the package was installed for these tests."""
    environment = {"CMAKE_ARGS": "-DFULLSTRIDE_KERNELS=layer_norm", **environment}
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, sdist, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    return build_wheel(sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory):
    """The interpreter of a new, empty environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    yield folder / "bin" / "python"
    shutil.rmtree(folder)  # a gigabyte


def install(python, wheel):
    """The wheel, then what it says it needs. Compiling all of torch to bytecode would take longer than the tests."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    run(*pip, "--no-deps", "--force-reinstall", wheel)
    run(*pip, "-c", ROOT / "constraints.txt", wheel)


def test_source_archive_leaves_out_runs_and_caches(sdist):
    with tarfile.open(sdist) as archive:
        names = ["/".join(Path(name).parts[1:]) for name in archive.getnames()]
    assert {"CMakeLists.txt", "LICENSE", "csrc/fullstride.h", "src/fullstride/__init__.py"} <= set(names)
    assert not set(LITTER) & set(names)


def test_wheel_serves_every_python_and_holds_one_library(wheel):
    assert "-py3-none-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".so", ".dylib"))] == ["fullstride/_lib/libfullstride.so"]
    assert "fullstride/_lib/fullstride.h" in names


def test_wheel_holds_the_package_and_nothing_else(wheel):
    files = [file for file in (ROOT / "src" / "fullstride").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("fullstride-")}
    built = {"fullstride/_lib/libfullstride.so", "fullstride/_lib/fullstride.h"}
    assert names - built == {str(file.relative_to(ROOT / "src")) for file in files}


def test_wheel_runs_its_kernels_in_a_clean_environment(wheel, clean_python):
    install(clean_python, wheel)
    done = run(clean_python, "-W", "error", "-c", USE_A_KERNEL)
    assert done.stdout.strip() in {"portable", "avx2", "avx512", "avx512_bf16", "neon", "neon_bf16"}


def test_every_module_imports_with_what_the_wheel_says_it_needs(wheel, clean_python):
    """But those for other people's trainers, a file each, which name what they miss in one line."""
    install(clean_python, wheel)
    done = run(clean_python, "-W", "error", "-c", IMPORT_ALL)
    files = sorted(file.stem for file in (ROOT / "src/fullstride/integrations").glob("[!_]*.py"))
    said = [re.fullmatch(MISSING, line) for line in done.stdout.splitlines()]
    assert [match and match[1] for match in said] == files, done.stdout


def test_without_a_compiler_the_package_installs_and_says_once_that_it_uses_torch(sdist, clean_python, tmp_path):
    wheel = build_wheel(sdist, tmp_path, CXX="/no/such/compiler")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    install(clean_python, wheel)
    done = run(clean_python, "-W", "always", "-c", USE_A_KERNEL + "layer_norm(x)\n")
    assert done.stdout.strip() == "torch"
    assert done.stderr.count("using torch instead") == 1

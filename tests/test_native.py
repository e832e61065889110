"""The loader of the kernel library, and the threads and floating-point mode that its kernels run with."""

import ctypes
import os
import re
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import fullstride
from fullstride import _native
from fullstride.ops.layer_norm import layer_norm, layer_norm_reference
from fullstride.ops.rope import rope, rope_reference, rope_tables

from .ops.cases import assert_close, gradients, random
from .patience import PATIENCE

MANY = 1 << 20  # elements, enough for every thread
DENORMAL = 1e-40
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc or forks")


def python(code, **environment):
    """Runs code in a fresh interpreter that shows every warning; None takes a variable away."""
    merged = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=merged, capture_output=True, text=True, timeout=PATIENCE)


def succeeds(code, **environment):
    done = python(code, **environment)
    assert done.returncode == 0, done.stderr
    return done


def scale(x, factor=1.0):
    """x *= factor, by a kernel that runs on every thread it may use."""
    _native.kernels.stream_scale(x.data_ptr(), factor, x.numel())
    return x


# ---- variants ----------------------------------------------------------------------------------------------------


def test_each_variant_runs_and_is_the_one_in_use(isa):
    assert _native.isa() == isa
    assert torch.equal(scale(torch.ones(MANY + 3), 2.0), torch.full((MANY + 3,), 2.0))


def test_the_best_variant_is_the_default():
    """Of those that need no trial."""
    library = _native.library()
    able = [name for name, supported in _native.isas().items() if supported and _native._base(library, name) is None]
    done = succeeds("from fullstride import _native; print(_native.isa())", FULLSTRIDE_ISA=None)
    assert done.stdout.strip() == able[-1]


def test_the_environment_chooses_the_variant():
    done = succeeds("from fullstride import _native; print(_native.isa())", FULLSTRIDE_ISA="portable")
    assert done.stdout.strip() == "portable"


@pytest.mark.parametrize("wish", ["sse9", *(name for name, able in _native.isas().items() if not able)])
def test_a_variant_that_cannot_run_is_an_error_naming_those_that_can(wish):
    done = python("from fullstride import _native; _native.available()", FULLSTRIDE_ISA=wish)
    assert done.returncode != 0
    able = ", ".join(name for name, supported in _native.isas().items() if supported)
    assert done.stderr.splitlines()[-1].endswith(f"ISA '{wish}' cannot run here; this machine can run: {able}")


def test_use_isa_puts_the_variant_back_even_after_an_error():
    before = _native.isa()
    with pytest.raises(ZeroDivisionError), _native.use_isa("portable"):
        raise ZeroDivisionError
    assert _native.isa() == before
    with pytest.raises(ValueError, match="ISA 'sse9' cannot run here"), _native.use_isa("sse9"):
        pass
    assert _native.isa() == before


# ---- the header and the symbols ----------------------------------------------------------------------------------


def test_every_kernel_of_the_header_is_in_every_variant():
    library = _native.library()
    declared = _native._signatures(Path(library._name))
    whole = [isa for isa in _native.isas() if _native._base(library, isa) is None]
    symbols = [f"fs_{isa}_{kernel}" for kernel in declared for isa in whole]
    symbols += [f"fs_{isa}_{kernel}" for kernel in ("gemm", "attention_forward") for isa in _native.isas()]
    assert len(declared) > 5
    assert len(whole) > 1
    assert [symbol for symbol in symbols if not hasattr(library, symbol)] == []


def test_every_declaration_of_the_header_is_read():
    beside = Path(_native.library()._name).with_name("fullstride.h")
    header = beside if beside.is_file() else Path(_native.__file__).parents[2] / "csrc" / "fullstride.h"
    code = re.sub(r"/\*.*?\*/|#define.*?[^\\]\n", "", header.read_text(), flags=re.DOTALL)
    assert len(_native._signatures(Path(_native.library()._name))) == len(re.findall(r"\bFS_KERNEL\(", code))


def test_argument_types_are_those_of_the_header():
    pointer, size, code = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    signatures = _native._signatures(Path(_native.library()._name))
    assert signatures["stream_triad"] == [pointer] * 3 + [ctypes.c_float, size]
    assert signatures["layer_norm_forward"] == [pointer] * 8 + [size] * 2 + [ctypes.c_float] + [code] * 2
    assert signatures["rope"] == [pointer] * 5 + [size] * 12 + [code] * 3
    assert _native.kernels.stream_triad.argtypes == signatures["stream_triad"]
    assert _native.kernels.stream_triad.restype is None


def test_a_kernel_that_does_not_exist_is_named():
    with pytest.raises(AttributeError, match="no kernel 'nothing' in the kernel library"):
        _ = _native.kernels.nothing


def test_the_version_is_that_of_the_package():
    assert _native.library().fs_version().decode() == fullstride.__version__


# ---- without the library -----------------------------------------------------------------------------------------

TWO_OPS = """
import torch
from fullstride import _native
from fullstride.ops.layer_norm import layer_norm
from fullstride.ops.rope import rope, rope_tables
x = torch.arange(24.0).view(1, 2, 3, 4).requires_grad_()
(layer_norm(x) + rope(x, *rope_tables(2, 4))).square().sum().backward()
assert x.grad.isfinite().all()
assert not _native.available() and _native.isa() == "torch" and _native.isas() == {}
"""


def test_without_native_the_references_serve_with_one_warning():
    done = succeeds(TWO_OPS, FULLSTRIDE_NATIVE="0")
    assert done.stderr.count("Warning") == 1
    assert "FULLSTRIDE_NATIVE=0, using torch instead of the kernels" in done.stderr


def test_without_a_library_the_references_serve_with_one_warning():
    nowhere = """
    import sysconfig
    from fullstride import _native
    _native.__file__, sysconfig.get_path = "/nowhere/_native.py", lambda name: "/nowhere"
    """
    done = succeeds(textwrap.dedent(nowhere) + TWO_OPS, FULLSTRIDE_LIBRARY=None, FULLSTRIDE_NATIVE=None)
    assert done.stderr.count("Warning") == 1
    assert "installed without its kernel library" in done.stderr


def test_a_broken_library_is_one_warning_and_the_references_serve(tmp_path):
    for name in ("libfullstride.so", "libfullstride.dylib"):
        (tmp_path / "fullstride" / "_lib").mkdir(parents=True, exist_ok=True)
        (tmp_path / "fullstride" / "_lib" / name).write_bytes(b"not a library")
    broken = f"""
    import sysconfig
    from fullstride import _native
    _native.__file__, sysconfig.get_path = "/nowhere/_native.py", lambda name: {str(tmp_path)!r}
    """
    done = succeeds(textwrap.dedent(broken) + TWO_OPS, FULLSTRIDE_LIBRARY=None, FULLSTRIDE_NATIVE=None)
    assert done.stderr.count("Warning") == 1
    assert "its kernel library cannot be loaded" in done.stderr


def test_a_broken_library_asked_for_by_name_is_one_clear_line(tmp_path):
    library = tmp_path / "libfullstride.so"
    library.write_bytes(b"not a library")
    done = python("from fullstride import _native; _native.available()", FULLSTRIDE_LIBRARY=str(library))
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"OSError: FULLSTRIDE_LIBRARY={library}: ")
    assert last.endswith("; unset it to use the installed library")


def test_a_library_of_another_version_is_one_warning():
    code = """
    import fullstride
    fullstride.__version__ = "9.9.9"
    from fullstride import _native
    assert _native.available() and _native.available()
    """
    done = succeeds(code)
    assert done.stderr.count("Warning") == 1
    assert f"is of version {fullstride.__version__}, the package of 9.9.9; reinstall" in done.stderr


def test_the_warning_points_at_the_caller():
    done = succeeds("from fullstride import _native\nprint(_native.isa())", FULLSTRIDE_NATIVE="0")
    assert done.stderr.startswith("<string>:2: UserWarning: fullstride: FULLSTRIDE_NATIVE=0")


def test_a_library_path_that_leads_nowhere_is_one_clear_line():
    done = python("from fullstride import _native; _native.available()", FULLSTRIDE_LIBRARY="/nowhere/libfullstride.so")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "FileNotFoundError: FULLSTRIDE_LIBRARY=/nowhere/libfullstride.so: no such file;"
        " unset it to use the installed library"
    )


def test_importing_alone_neither_loads_nor_warns():
    done = succeeds("import fullstride.ops; from fullstride import _native", FULLSTRIDE_NATIVE="0")
    assert done.stderr == ""


# ---- threads -----------------------------------------------------------------------------------------------------


@on_linux
def test_exactly_one_openmp_is_mapped():
    done = succeeds(f"""
        import torch
        from fullstride import _native
        torch.set_num_threads(2)
        x = torch.ones({MANY}) + 1
        _native.kernels.stream_scale(x.data_ptr(), 2.0, x.numel())
        maps = open("/proc/self/maps").read().splitlines()
        print(*{{line.split()[-1] for line in maps if "gomp" in line or "iomp" in line or "libomp" in line}})
    """)
    assert len(done.stdout.split()) == 1, done.stdout


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_torch_sets_the_number_of_threads(num_threads, threads):
    num_threads(threads)
    assert _native.library().fs_max_threads() == threads


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_a_python_thread_may_set_its_own_number(num_threads):
    num_threads(2)

    def own():
        torch.set_num_threads(3)
        return _native.library().fs_max_threads()

    assert in_thread(own) == 3
    assert _native.library().fs_max_threads() == 2


def test_a_new_python_thread_takes_over_the_number_of_the_process(num_threads):
    num_threads(1)
    assert in_thread(lambda: layer_norm(torch.ones(2, 8)) is not None and _native.library().fs_max_threads()) == 1


def test_kernels_of_several_python_threads_do_not_disturb_each_other(isa):
    tables = rope_tables(64, 32)
    inputs = [random(2, 64, 8, 32, seed=seed) for seed in range(6)]
    together = threading.Barrier(6)

    def work(x):
        together.wait()
        for _ in range(5):
            y, grads = gradients(lambda x: layer_norm(rope(x, *tables)), (x,))
        return y[0], grads[0]

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, inputs))
    for x, (y, dx) in zip(inputs, results, strict=True):
        expected, (dx_expected,) = gradients(lambda x: layer_norm_reference(rope_reference(x, *tables))[0], (x,))
        assert_close(y, expected[0])
        assert_close(dx, dx_expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_number_of_threads_gives_the_same_bits(isa, num_threads, threads):
    num_threads(threads)
    inputs = random(301, 257), random(257, seed=1), random(257, seed=2)
    first = gradients(layer_norm, inputs)[1]
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(gradients(layer_norm, inputs)[1], first, strict=True))


@on_linux
def test_a_variant_without_kernels_of_its_own_goes_on_with_its_base():
    names = _native._isa_names(_native.library())
    bases = {name: _native._base(_native.library(), name) for name in names}
    assert bases.pop("amx", "avx512_bf16") == "avx512_bf16"
    assert set(bases.values()) == {None}
    before = _native.isa()
    assert before == "amx" or not _native.fall_back()


# ---- fork --------------------------------------------------------------------------------------------------------

FORK = f"""
import os, signal, warnings
import torch
from fullstride import _native
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of fork() beside threads: that is the point
torch.set_num_threads(2)
x = torch.ones({MANY}) + 1
work = lambda: _native.kernels.stream_scale(x.data_ptr(), 2.0, x.numel())
work()  # the pool is there now
def child(body):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs ends by a signal
        body()
        os._exit(0 if (x.numpy() == 8).all() else 1)  # not in torch, which would hang here
    return os.waitpid(pid, 0)[1]
"""


@on_linux
def test_a_forked_child_runs_kernels_on_one_thread_and_the_parent_on_all():
    succeeds(FORK + "assert child(lambda: (work(), _native.library().fs_max_threads() == 1 or os._exit(2))) == 0\n"
             "work()\nassert (x.numpy() == 8).all() and _native.library().fs_max_threads() == 2")  # fmt: skip


@on_linux
def test_a_forked_child_of_a_python_thread_runs_kernels():
    succeeds(FORK + "import threading\nstatus = []\n"
             "thread = threading.Thread(target=lambda: (torch.set_num_threads(2), status.append(child(work))))\n"
             "thread.start(); thread.join()\nassert status == [0]")  # fmt: skip


@on_linux
def test_flushing_everywhere_does_not_hang_in_a_forked_child():
    succeeds(FORK + "assert child(lambda: (_native.library().fs_flush_denormals_everywhere(1), work())) == 0")


@on_linux
def test_a_model_is_prepared_in_a_forked_child():
    succeeds(FORK + """
import fullstride
def body():
    work()
    model = torch.nn.Linear(8, 8)
    model, optimizer = fullstride.prepare(model, torch.optim.AdamW(model.parameters()))
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
assert child(body) == 0
""")


@on_linux
def test_kernels_run_in_the_workers_of_a_data_loader():
    succeeds(FORK + """
import numpy as np
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        torch.set_num_threads(2)  # the loader gave it 1
        y = torch.from_numpy(np.full(100_000, i, dtype=np.float32))
        _native.kernels.stream_scale(y.data_ptr(), 3.0, y.numel())
        return y
loader = torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=99)
assert [float(y[-1]) for y in loader] == [0, 3, 6, 9]
""")


# ---- denormals ---------------------------------------------------------------------------------------------------


@pytest.fixture
def flush_denormals():
    library = _native.library()
    yield library.fs_set_flush_denormals
    library.fs_set_flush_denormals(1)


def torch_keeps_denormals():
    """In this thread (few elements) and in every thread of the pool (many)."""
    return all(bool(((torch.full((n,), DENORMAL) * 1.0) != 0).all()) for n in (1, MANY))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_kernels_flush_denormals_in_every_thread_and_torch_does_not_notice(isa, num_threads, flush_denormals, threads):
    num_threads(threads)
    flush_denormals(1)
    assert (scale(torch.full((MANY,), DENORMAL)) == 0).all()
    assert torch_keeps_denormals()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_kernels_keep_denormals_when_told(isa, num_threads, flush_denormals, threads):
    num_threads(threads)
    flush_denormals(0)
    assert (scale(torch.full((MANY,), DENORMAL)) != 0).all()


def test_flushing_everywhere_reaches_torch_in_every_thread_and_can_be_undone(num_threads, flush_denormals):
    num_threads(2)
    library = _native.library()
    library.fs_flush_denormals_everywhere(1)
    try:
        flushed = [(torch.full((n,), DENORMAL) * 1.0).view(torch.int32) for n in (1, MANY)]
        scale(torch.ones(MANY))  # a kernel leaves the mode as it was, also when that was flushing
        flushed += [(torch.full((n,), DENORMAL) * 1.0).view(torch.int32) for n in (1, MANY)]
    finally:
        library.fs_flush_denormals_everywhere(0)
    assert all((bits == 0).all() for bits in flushed)
    flush_denormals(0)
    assert torch_keeps_denormals()
    assert (scale(torch.full((MANY,), DENORMAL)) != 0).all()

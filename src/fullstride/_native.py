"""The only loader of the kernel library: finds it, picks the ISA variant, declares the signatures.

`kernels.<name>` is the chosen variant of the kernel `<name>` of csrc/fullstride.h. When there is no library,
`available()` is False and the ops use their torch references; one warning says so.

Environment, read once when the library is first needed:

- `FULLSTRIDE_NATIVE=0`: do without the library.
- `FULLSTRIDE_ISA=portable|avx2|...`: this variant instead of the best one; an error if this machine lacks it.
- `FULLSTRIDE_LIBRARY=FILE`: this library instead of the installed one.
"""

import ctypes
import os
import re
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch  # before the library: it must find torch's libgomp already loaded and share its threads

from . import __version__

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The codes of fs_dtype."""

_CTYPES: dict[str, Any] = {
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


class _Thread(threading.local):
    """What is done once in each Python thread."""

    ready = False


_thread = _Thread()


def available() -> bool:
    """Whether the kernels are there. The first call loads them, or warns why not."""
    if not _thread.ready:
        torch.get_num_threads()  # hands torch.set_num_threads to OpenMP, which in a new thread still has its default
        _thread.ready = True
    return _library() is not None


def isas() -> dict[str, bool]:
    """The variants built into the library, in rising order of preference, and whether this machine can run each."""
    library = _library()
    if library is None:
        return {}
    return {name: bool(library.fs_isa_supported(i)) for i, name in enumerate(_isa_names(library))}


def isa() -> str:
    """The variant in use, or "torch" when there is no library."""
    return _active if available() else "torch"


def best_isa() -> str:
    """The best variant that this machine can run, which may be one that must be tried first (step_up)."""
    return ([name for name, able in isas().items() if able] or ["torch"])[-1]


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Runs the kernels of another variant for a while. For tests and benchmarks; not thread-safe."""
    before = isa()
    _bind(name)
    try:
        yield
    finally:
        _bind(before)


def step_up() -> bool:
    """Goes on with the variant that builds on this one, if the machine has it and nobody chose another.

    That is the matrix unit, which a hypervisor may show although it does not work: loading the library does not take
    it, and who does tries it in a child process first (backends/choosing.py).
    """
    if not available() or os.environ.get("FULLSTRIDE_ISA"):
        return False
    higher = next((name for name in _isa_names(library()) if _base(library(), name) == isa()), None)
    if higher is None or not isas()[higher]:
        return False
    _bind(higher)
    return True


def fall_back() -> bool:
    """Goes on with the variant that this one builds on; False if it builds on none."""
    base = _base(library(), isa()) if available() else None
    if base is not None:
        _bind(base)
    return base is not None


def as_it_is() -> Callable[[], None]:
    """A function that brings back the variant in use now."""
    name = isa()
    return lambda: None if name in ("torch", isa()) else _bind(name)


def library() -> ctypes.CDLL:
    """The library itself, for the calls that have no variants (fs_set_grain and the like)."""
    loaded = _library()
    if loaded is None:
        raise RuntimeError("the kernel library is not loaded; reinstall fullstride with a C++ compiler at hand")
    return loaded


class _Kernels(SimpleNamespace):
    """Kernels of the active variant as attributes. The first one asked for loads the library."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and available() and name in self.__dict__:
            return self.__dict__[name]
        raise AttributeError(f"no kernel {name!r} in the kernel library")


kernels: Any = _Kernels()
_active = ""


@cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("FULLSTRIDE_NATIVE", "1") == "0":
        _warn("FULLSTRIDE_NATIVE=0, using torch instead of the kernels")
        return None
    path = _find()
    if path is None:
        _warn(
            "installed without its kernel library (no C++ compiler at that time?), using torch instead;"
            " reinstall with a compiler for full speed"
        )
        return None
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        if os.environ.get("FULLSTRIDE_LIBRARY"):
            reason = str(error).replace(f"{path}: ", "")
            raise OSError(f"FULLSTRIDE_LIBRARY={path}: {reason}; unset it to use the installed library") from None
        _warn(f"its kernel library cannot be loaded ({error}), using torch instead; reinstall for full speed")
        return None
    loaded.fs_isa_name.restype = ctypes.c_char_p
    loaded.fs_version.restype = ctypes.c_char_p
    loaded.fs_set_grain.argtypes = [ctypes.c_int64]
    loaded.fs_set_welford_cols.argtypes = [ctypes.c_int64]
    version = loaded.fs_version().decode()
    if version != __version__:
        _warn(f"the kernel library is of version {version}, the package of {__version__}; reinstall to match them")
    _load(loaded)
    return loaded


def _warn(message: str) -> None:
    """A warning that points at the first caller outside of this package."""
    package, level, frame = str(Path(__file__).parent) + os.sep, 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"fullstride: {message}", stacklevel=level)


def _find() -> Path | None:
    """The library: where FULLSTRIDE_LIBRARY says, in the package, or (editable install) in site-packages."""
    wish = os.environ.get("FULLSTRIDE_LIBRARY")
    if wish:
        if not Path(wish).is_file():
            raise FileNotFoundError(f"FULLSTRIDE_LIBRARY={wish}: no such file; unset it to use the installed library")
        return Path(wish)
    name = "libfullstride.dylib" if sysconfig.get_platform().startswith("macosx") else "libfullstride.so"
    folders = [Path(__file__).parent, Path(sysconfig.get_path("platlib")) / "fullstride"]
    return next((file for folder in folders if (file := folder / "_lib" / name).is_file()), None)


def _load(library: ctypes.CDLL) -> None:
    """Chooses the variant and binds it."""
    names, wish = _isa_names(library), os.environ.get("FULLSTRIDE_ISA")
    # To ask for a variant that builds on another is to ask Linux for the matrix unit: only where it is wanted.
    asked = [(i, name) for i, name in enumerate(names) if name == wish or _base(library, name) is None]
    able = [name for i, name in asked if library.fs_isa_supported(i)]
    if wish and wish not in able:  # an error, which names all
        able = [name for i, name in enumerate(names) if library.fs_isa_supported(i)]
    _check_isa(wish or able[-1], able)
    _bind_variant(library, wish or able[-1])


def _bind(name: str) -> None:
    _check_isa(name, [isa for isa, able in isas().items() if able])
    _bind_variant(library(), name)


def _check_isa(wish: str, able: list[str]) -> None:
    if wish not in able:
        raise ValueError(f"ISA {wish!r} cannot run here; this machine can run: {', '.join(able)}")


def _bind_variant(library: ctypes.CDLL, name: str) -> None:
    global _active
    base = _base(library, name)
    for kernel, argtypes in _signatures(Path(library._name)).items():
        function = getattr(library, f"fs_{name}_{kernel}", None) or getattr(library, f"fs_{base}_{kernel}", None)
        if function is not None:
            function.argtypes = argtypes
            function.restype = None
            kernels.__dict__[kernel] = function
    _active = name


def _base(library: ctypes.CDLL, name: str) -> str | None:
    """The variant whose kernels serve where this one has none of its own."""
    names = _isa_names(library)
    base = library.fs_isa_base(names.index(name))
    return names[base] if base >= 0 else None


def _isa_names(library: ctypes.CDLL) -> list[str]:
    names: list[str] = []
    while (name := library.fs_isa_name(len(names))) is not None:
        names.append(name.decode())
    return names


@cache
def _signatures(library: Path) -> dict[str, list[Any]]:
    """Argument types of every kernel, read from the header, so that they are written down only once."""
    beside = library.with_name("fullstride.h")
    header = beside if beside.is_file() else Path(__file__).parents[2] / "csrc" / "fullstride.h"
    declarations = re.findall(r"^FS_KERNEL\((\w+),(.*?)\);", header.read_text(), re.DOTALL | re.MULTILINE)
    return {name: [_ctype(argument) for argument in arguments.split(",")] for name, arguments in declarations}


def _ctype(argument: str) -> Any:
    return ctypes.c_void_p if "*" in argument else _CTYPES[argument.split()[-2]]

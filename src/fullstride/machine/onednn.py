"""Keeps torch's bf16 alive on CPUs that show AMX without its palettes (cpuid.py), by capping what oneDNN may use.

oneDNN reads ONEDNN_MAX_CPU_ISA once, when it is used for the first time in a process: the first product or convolution
of torch's, in any precision. `import fullstride` puts AVX512_CORE_BF16 there on such a CPU, into os.environ and so into
the environment of the process that C code sees. All of torch's bf16 operations then work, without AMX. Elsewhere, and
where the user has set the variable (or its old name, DNNL_MAX_CPU_ISA), nothing is changed.

A cap can come too late: `import torch`, a product, then `import fullstride`. oneDNN is not asked by name for what it
uses, its symbols being hidden in libtorch_cpu, but torch has an op that answers from oneDNN's effective ISA: whether it
computes in fp16, which is above AVX512_CORE_BF16 and part of what AMX needs. If it says yes in spite of the cap, the
cap was not read. backends/choosing.py then keeps bf16 out of the process.

The cap is inherited by programs that this process starts. FULLSTRIDE_ONEDNN_CAP beside it says that it was ours, so
that user_environment() can hand stock PyTorch an environment without it.
"""

import os
import sys
from collections.abc import Callable

from . import cpuid

VARIABLE, CAP = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
_OLD_VARIABLE, _MARK = "DNNL_MAX_CPU_ISA", "FULLSTRIDE_ONEDNN_CAP"
LATE = (
    "this CPU shows AMX without its palettes, on which torch's bf16 dies, and torch had multiplied before fullstride"
    f" was imported: import fullstride first, or set {VARIABLE}={CAP} before Python starts"
)
_torch_was_there = False


def cap(hides_palettes: Callable[[], bool] = cpuid.hides_palettes) -> None:
    """To be called before oneDNN is first used. Does nothing where torch is healthy, or the user has set a cap."""
    global _torch_was_there
    if limit() is None and hides_palettes():
        _torch_was_there = "torch" in sys.modules
        os.environ[VARIABLE] = os.environ[_MARK] = CAP


def limit() -> str | None:
    """The cap in the environment, ours or the user's; None for none."""
    return os.environ.get(VARIABLE) or os.environ.get(_OLD_VARIABLE) or None


def is_ours() -> bool:
    """Whether the cap is one that cap() has set, here or in the program that started this one."""
    return _MARK in os.environ and os.environ[_MARK] == os.environ.get(VARIABLE)


def is_late() -> bool:
    """Whether our cap was set, but oneDNN had been used before. Asking uses it: from now on no cap would be in time."""
    if not is_ours():
        return False
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    except (AttributeError, RuntimeError):  # a torch without this op: torch first, then, may mean too late
        return _torch_was_there


def user_environment() -> dict[str, str]:
    """The environment without our cap: as the user's was."""
    ours = {VARIABLE, _MARK} if is_ours() else {_MARK}
    return {name: value for name, value in os.environ.items() if name not in ours}


def describe() -> str:
    """What limits oneDNN, in words for people; nothing if nothing does."""
    if limit() is None:
        return ""
    if is_ours():
        return f"oneDNN capped at {CAP}: this CPU shows AMX without its palettes"
    return f"oneDNN limited to {limit()} by the environment"

"""How much memory malloc has handed out, to the byte.

What the process holds (memory.resident_bytes) does not tell: a heap that is kept stays resident after it was freed.
"""

import ctypes
import functools
from collections.abc import Callable

from . import memory

_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def in_use() -> int | None:
    """Bytes of all blocks that were allocated and not freed. None where malloc is not glibc's (2.33 or newer)."""
    ask = _mallinfo2()
    if ask is None:
        return None
    found = ask()
    return int(found.uordblks + found.hblkhd)  # in heaps, and blocks of their own


@functools.cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    if not memory.allocator().startswith("glibc"):
        return None
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo2
    return function

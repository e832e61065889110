"""What an x86 CPU says of itself where /proc/cpuinfo is silent: CPUID and XCR0, read by a few bytes of machine code.

One question is answered here: does this machine show AMX, but not the palettes that say how large its tiles are? Some
hypervisors do. CPUID leaf 7 and XCR0 announce AMX there, while leaves 0x1D and 0x1E are zero or beyond the highest one.
oneDNN 3.12 makes an empty tile configuration of that, and its first bf16 product dies with SIGILL (oneDNN issue 5689).
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any, NamedTuple

_AMX_BF16, _AMX_TILE, _AMX_INT8 = 1 << 22, 1 << 24, 1 << 25  # leaf 7, EDX
_OSXSAVE = 1 << 27  # leaf 1, ECX: without it there is no XGETBV
_TILE_STATE = 1 << 17 | 1 << 18  # XCR0: the system saves tile configuration and tile data

# void cpuid(uint32_t leaf, uint32_t sub, uint32_t out[4]), as System V passes arguments
_CPUID = bytes.fromhex(
    "53"  # push rbx: it is the caller's
    "4989d0"  # mov r8, rdx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8 + 4], ebx
    "41894808"  # mov [r8 + 8], ecx
    "4189500c"  # mov [r8 + 12], edx
    "5b"  # pop rbx
    "c3"  # ret
)
# uint64_t xcr0(void)
_XGETBV = bytes.fromhex(
    "31c9"  # xor ecx, ecx
    "0f01d0"  # xgetbv
    "48c1e220"  # shl rdx, 32
    "4809d0"  # or rax, rdx
    "c3"  # ret
)


class Registers(NamedTuple):
    eax: int = 0
    ebx: int = 0
    ecx: int = 0
    edx: int = 0


ReadLeaf = Callable[[int, int], Registers]


def hides_palettes(read: ReadLeaf | None = None, xcr0: Callable[[], int] | None = None) -> bool:
    """Whether AMX is shown without its palettes. False where that cannot be asked. The arguments are for tests."""
    if read is None:
        if not _is_x86():
            return False
        read, xcr0 = leaf, extended_state
    try:
        highest = read(0, 0).eax
        shown = read(7, 0).edx if highest >= 7 else 0
        if not (shown & _AMX_TILE and shown & (_AMX_BF16 | _AMX_INT8)) or not read(1, 0).ecx & _OSXSAVE:
            return False
        if xcr0 is None or xcr0() & _TILE_STATE != _TILE_STATE:  # then nobody takes AMX for usable
            return False
        return highest < 0x1E or read(0x1D, 0).eax == 0 or not any(read(0x1D, 1)) or not any(read(0x1E, 0))
    except OSError:  # no page may be made executable here
        return False


def leaf(number: int, sub: int = 0) -> Registers:
    """CPUID. OSError where the system lets no page be executed."""
    out = (ctypes.c_uint32 * 4)()
    _call(_CPUID, None, ctypes.c_uint32(number), ctypes.c_uint32(sub), out)
    return Registers(*out)


def extended_state() -> int:
    """XCR0: the registers that the system saves. Only where leaf 1 shows OSXSAVE; OSError as above."""
    value: int = _call(_XGETBV, ctypes.c_uint64)
    return value


def _call(code: bytes, result: type | None, *arguments: object) -> int:
    """Runs machine code from a page of its own, which is gone afterwards."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(code)
        view = ctypes.c_char.from_buffer(page)
        kinds: list[Any] = [type(argument) for argument in arguments]
        value = ctypes.CFUNCTYPE(result, *kinds)(ctypes.addressof(view))(*arguments)
        del view  # or the page could not be unmapped
    return value or 0


def _is_x86() -> bool:
    """On a system whose calls the machine code above understands."""
    return hasattr(os, "uname") and os.uname().machine in ("x86_64", "AMD64")

"""That a machine that hides its palettes is known by its registers, and that real ones can be read."""

import os

import pytest

from fullstride.machine import cpu, cpuid
from fullstride.machine.cpuid import Registers

AMX = 1 << 22 | 1 << 24 | 1 << 25
SAVED = 0x600E7  # XCR0 of an Emerald Rapids: x87, SSE, AVX, AVX-512, PKRU, tiles
WHOLE = {
    (0, 0): Registers(eax=0x20),
    (1, 0): Registers(ecx=1 << 27),
    (7, 0): Registers(edx=AMX),
    (0x1D, 0): Registers(eax=1),
    (0x1D, 1): Registers(0x04002000, 0x00080040, 0x10, 0),
    (0x1E, 0): Registers(ebx=0x4010),
}
HIDDEN = WHOLE | {(0, 0): Registers(eax=0x1C), (0x1D, 0): Registers(), (0x1D, 1): Registers(), (0x1E, 0): Registers()}


def hides(leaves, xcr0=SAVED):
    return cpuid.hides_palettes(lambda number, sub: leaves.get((number, sub), Registers()), lambda: xcr0)


def test_a_whole_machine_hides_nothing():
    assert not hides(WHOLE)


@pytest.mark.parametrize(
    "leaves",
    [
        HIDDEN,
        WHOLE | {(0, 0): Registers(eax=0x1C)},  # what lies beyond the highest leaf is another leaf's content
        WHOLE | {(0x1D, 0): Registers()},
        WHOLE | {(0x1D, 1): Registers()},
        WHOLE | {(0x1E, 0): Registers()},
        HIDDEN | {(7, 0): Registers(edx=1 << 24 | 1 << 22)},
    ],
)
def test_amx_without_palettes_is_known(leaves):
    assert hides(leaves)


@pytest.mark.parametrize(
    ("leaves", "xcr0"),
    [
        (HIDDEN | {(7, 0): Registers()}, SAVED),  # no AMX
        (HIDDEN | {(7, 0): Registers(edx=1 << 24)}, SAVED),  # tiles, and nothing that computes with them
        (HIDDEN | {(0, 0): Registers(eax=1)}, SAVED),
        (HIDDEN | {(1, 0): Registers()}, SAVED),  # XGETBV would be an illegal instruction
        (HIDDEN, 0xE7),  # a system that does not save tiles
        (HIDDEN, 0xE7 | 1 << 17),
    ],
)
def test_amx_that_nobody_would_use_is_no_trouble(leaves, xcr0):
    assert not hides(leaves, xcr0)


def test_where_no_page_may_be_executed_nothing_is_suspected():
    def refuse(number, sub):
        raise PermissionError("no executable pages here")

    assert not cpuid.hides_palettes(refuse, lambda: SAVED)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="CPUID is x86's")
def test_real_registers_are_those_of_cpuinfo():
    highest, *name = cpuid.leaf(0)
    assert highest >= 1
    ebx, ecx, edx = name
    vendor = b"".join(register.to_bytes(4, "little") for register in (ebx, edx, ecx)).decode()
    with open("/proc/cpuinfo") as file:
        assert vendor in file.read()
    features = cpu.describe().features
    assert bool(cpuid.leaf(7).ebx & 1 << 5) == features["avx2"]
    assert bool(cpuid.leaf(7).edx & 1 << 24) == features["amx_tile"]
    if features["avx512"]:
        assert cpuid.extended_state() & 0xE6 == 0xE6

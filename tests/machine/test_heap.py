"""What malloc has handed out."""

import pytest
import torch

from fullstride.machine import heap, memory

SIZE = 64 << 20


@pytest.fixture
def asked_anew():
    heap._mallinfo2.cache_clear()
    yield
    heap._mallinfo2.cache_clear()


def in_use() -> int:
    found = heap.in_use()
    assert found is not None
    return found


@pytest.mark.skipif(heap.in_use() is None, reason="malloc is not glibc's")
def test_a_block_counts_from_its_allocation_to_its_end():
    before = in_use()
    block = torch.empty(SIZE, dtype=torch.uint8)
    held = in_use() - before
    assert SIZE <= held < 1.01 * SIZE
    del block
    assert in_use() - before < 0.01 * SIZE


@pytest.mark.usefixtures("asked_anew")
def test_another_allocator_tells_nothing(monkeypatch):
    monkeypatch.setattr(memory, "allocator", lambda: "jemalloc")
    assert heap.in_use() is None


@pytest.mark.usefixtures("asked_anew")
def test_an_older_glibc_tells_nothing(monkeypatch):
    monkeypatch.setattr(memory, "allocator", lambda: "glibc 2.31")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: object())
    assert heap.in_use() is None

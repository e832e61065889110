"""That the probes do what they say. How fast is for `fullstride info` to tell, not for a test."""

import pytest
import torch

from fullstride import _native
from fullstride.machine import streams


@pytest.fixture
def small(monkeypatch):
    """Buffers of a few KiB, and nothing kept from or for other tests."""
    a, b, c = (torch.full((1000,), value) for value in (1.0, 2.0, 4.0))
    monkeypatch.setattr(streams, "_buffer", (a, b, c).__getitem__)
    streams.stream.cache_clear()
    yield a, b, c
    streams.stream.cache_clear()


def test_every_candidate_writes_the_same(small):
    a, _, _ = small
    for candidate in streams._candidates("write", small):
        a.fill_(7)
        candidate.run()
        assert torch.equal(a, torch.full((1000,), 4.0))
        assert candidate.bytes == 12000


def test_update_leaves_the_values_alone(small):
    for candidate in streams._candidates("update", small):
        candidate.run()
        assert candidate.bytes == 8000
    assert torch.equal(small[0], torch.ones(1000))


def test_our_kernel_and_torch_compete(small):
    for mix in streams.MIXES:
        assert len(streams._candidates(mix, small)) == (2 if _native.available() else 1)


def test_without_the_library_torch_serves(small, monkeypatch):
    monkeypatch.setattr(_native, "available", lambda: False)
    assert all(streams.bandwidth(mix, seconds=0) > 0 for mix in streams.MIXES)


def test_unknown_mix_is_named(small):
    with pytest.raises(ValueError, match=r"no mix 'writ'.* read, write, update"):
        streams.bandwidth("writ")


def test_buffers_stay_within_a_share_of_the_memory(monkeypatch):
    huge_cache = streams.cpu.Cache(3, "unified", 1 << 40, 1, 1)
    machine = streams.cpu.describe()
    crowded = streams.cpu.Cpu(**{**machine.__dict__, "caches": (huge_cache,), "memory_limit_bytes": 24 << 20})
    monkeypatch.setattr(streams.cpu, "describe", lambda: crowded)
    buffers = [streams._buffer.__wrapped__(number) for number in range(max(streams._ARRAYS.values()))]
    assert sum(x.numel() * x.element_size() for x in buffers) <= (24 << 20) // streams._SHARE_OF_MEMORY

import dataclasses

import numpy as np
import PIL
import pytest

from fullstride.data.pictures import decoded, reading
from fullstride.data.pictures.found import UNREAD, Pair, Place, Skipped
from fullstride.machine import cpu

from .making import encoded, picture


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


CONTENTS = [encoded(picture(i)) for i in range(4)] + [b"no picture"]


@pytest.fixture
def pairs(tmp_path):
    """Places of five files, of which 0 and 2 are not there, and 4 is no picture."""
    places = [Place(tmp_path / f"{i}.png", 0, len(content), 7) for i, content in enumerate(CONTENTS)]
    for i in (1, 3, 4):
        places[i].path.write_bytes(CONTENTS[i])
    return [Pair(place.path.name, place, ("x",)) for place in places]


def check(pairs):
    """({name: picture}, what was skipped)."""
    skipped = Skipped()
    found = decoded.check(pairs, 8, skipped)
    assert len(found.digests) == len(found.pairs)
    if found.pixels is None:
        return {pair.name: None for pair in found.pairs}, skipped.counts
    return {pair.name: np.array(row) for pair, row in zip(found.pairs, found.pixels, strict=True)}, skipped.counts


def put(pairs, i):
    pairs[i].place.path.write_bytes(CONTENTS[i])


def names_decoded(monkeypatch):
    """Of the pictures that are decoded from now on."""
    names, decode = [], reading.decode

    def noted(content, size):
        names.append(CONTENTS.index(content))
        return decode(content, size)

    monkeypatch.setattr(reading, "decode", noted)
    return names


@pytest.mark.parametrize("keeps", [True, False])
def test_what_could_not_be_read_is_tried_again_and_nothing_else(pairs, monkeypatch, keeps):
    if not keeps:
        monkeypatch.setattr(decoded, "MOST_BYTES", 0)
    found, counts = check(pairs)
    assert list(found) == ["1.png", "3.png"]
    assert counts == {UNREAD: 2, reading.BROKEN: 1}
    names = names_decoded(monkeypatch)
    put(pairs, 2)
    for _ in range(2):  # the second time from what was kept
        found, counts = check(pairs)
        assert list(found) == ["1.png", "2.png", "3.png"]
        assert counts == {UNREAD: 1, reading.BROKEN: 1}
        assert names == [2]
    put(pairs, 0)
    found, counts = check(pairs)
    assert list(found) == ["0.png", "1.png", "2.png", "3.png"]
    assert counts == {reading.BROKEN: 1}
    assert not {1, 3, 4} & set(names)
    if keeps:
        for i in range(4):
            assert np.array_equal(found[f"{i}.png"], reading.decode(CONTENTS[i], 8))


def test_all_of_it_may_be_read_later(pairs):
    assert check(pairs[:1]) == ({}, {UNREAD: 1})
    put(pairs, 0)
    found, counts = check(pairs[:1])
    assert np.array_equal(found["0.png"], reading.decode(CONTENTS[0], 8))
    assert counts == {}


def test_a_file_that_fails_between_two_readings_is_tried_again(pairs, monkeypatch):
    check(pairs)
    put(pairs, 0)
    with monkeypatch.context() as patch:
        patch.setattr(decoded, "_can_be_read", lambda pair: True)  # though 2 is not there
        found, counts = check(pairs)
    assert list(found) == ["1.png", "3.png"]
    assert counts == {UNREAD: 2, reading.BROKEN: 1}
    put(pairs, 2)
    assert list(check(pairs)[0]) == ["0.png", "1.png", "2.png", "3.png"]


def test_too_little_memory_ends_the_run_and_is_not_remembered(pairs, monkeypatch):
    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(reading, "_square", fails)
        with pytest.raises(MemoryError):
            check(pairs)
    assert list(check(pairs)[0]) == ["1.png", "3.png"]


def test_another_pillow_decodes_again(pairs, monkeypatch):
    check(pairs)
    names = names_decoded(monkeypatch)
    check(pairs)
    assert names == []
    monkeypatch.setattr(PIL, "__version__", "0.1")
    check(pairs)
    assert sorted(names) == [1, 3, 4]


@pytest.mark.parametrize(("cores", "quota", "num"), [(64, None, 8), (64, 2.5, 2), (3, None, 3)])
def test_as_many_threads_decode_as_there_are_cores_and_memory_for(cores, quota, num):
    machine = dataclasses.replace(cpu.describe(), num_affinity=2 * cores, num_affinity_cores=cores, quota=quota)
    assert decoded.num_threads(machine) == num

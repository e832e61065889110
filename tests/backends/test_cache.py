"""That findings are kept for what they were found on, whatever happens to the file."""

import json
import os
import subprocess
import sys
import threading

import pytest
import torch

from fullstride.backends import cache
from fullstride.backends.cache import Findings

FOUND = Findings({"our fp32 product": "fine"}, {"fp32": {"few rows": {"native": 100.0}}}, 1000.0, "", 0.1)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FULLSTRIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_here", {})
    return tmp_path / "cache"


def test_what_is_kept_is_recalled(folder):
    assert cache.recall(2) is None
    assert cache.keep(FOUND, 2) == ""
    assert cache.recall(2) == FOUND
    assert cache.entries() == {cache.key(2): FOUND}
    assert [path.name for path in folder.iterdir()] == ["machine.json"]


def test_findings_hold_for_one_machine_and_its_versions_only(monkeypatch):
    keys = [cache.key(2), cache.key(3)]
    with monkeypatch.context() as patch:
        patch.setattr(cache, "__version__", "9.9")
        keys.append(cache.key(2))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.8")
        keys.append(cache.key(2))
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_flags", lambda: "fpu vme")
        keys.append(cache.key(2))
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_build", lambda: "another")
        keys.append(cache.key(2))
    for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "avx2")
            keys.append(cache.key(2))
            assert f"{name}=avx2" in keys[-1]
    assert len(set(keys)) == 8
    from fullstride import _native
    from fullstride.machine import cpu

    for part in (cpu.describe().model, _native.isa(), "2 threads", torch.__version__):
        assert part in keys[0]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[1, 2]", "null", '{"version": 1, "entries": {}}', '{"version": 2}',
                '{"version": 2, "entries": 3}', '{"version": 2, "entries": {"KEY": 3}}',
                '{"version": 2, "entries": {"KEY": {}}}', b"\xff\xfe\x00"]
)  # fmt: skip
def test_a_broken_file_is_as_good_as_none(folder, content):
    folder.mkdir()
    content = content if isinstance(content, bytes) else content.replace("KEY", cache.key(2)).encode()
    (folder / "machine.json").write_bytes(content)
    assert cache.recall(2) is None
    assert cache.entries() == {}
    assert cache.keep(FOUND, 2) == ""
    assert cache.recall(2) == FOUND


@pytest.mark.parametrize(
    "change",
    [
        {"rates": {"fp32": [1]}}, {"rates": {"fp32": {"few rows": 3}}}, {"rates": 7}, {"taken": "now"},
        {"rates": {"fp32": {"few rows": {"torch": "fast"}}}}, {"rates": {"fp32": {"few rows": {"torch": -1.0}}}},
        {"rates": {"fp32": {"few rows": {"torch": float("nan")}}}}, {"verdicts": []}, {"verdicts": {"a": 1}},
        {"busy": None}, {"more": 1},
    ],
)  # fmt: skip
def test_an_entry_that_makes_no_sense_is_not_taken(folder, change):
    cache.keep(FOUND, 2)
    content = json.loads((folder / "machine.json").read_text())
    content["entries"][cache.key(2)].update(change)
    (folder / "machine.json").write_text(json.dumps(content))
    assert cache.recall(2) is None


def test_what_is_kept_for_other_conditions_stays():
    cache.keep(FOUND, 2)
    cache.keep(Findings(FOUND.verdicts, taken=7.0), 3)
    assert cache.recall(2) == FOUND
    assert len(cache.entries()) == 2


def test_a_file_that_cannot_be_written_is_made_up_for_by_memory(folder):
    folder.write_text("a file where the folder should be")
    assert "set FULLSTRIDE_CACHE to a folder that can" in cache.keep(FOUND, 2)
    assert cache.recall(2) == FOUND
    folder.unlink()
    (folder / "machine.json").mkdir(parents=True)  # nor replaced
    assert cache.keep(FOUND, 2) != ""
    assert [path.name for path in folder.iterdir()] == ["machine.json"]


def test_of_findings_with_trouble_the_next_process_gets_what_was_found(monkeypatch):
    troubled = Findings(FOUND.verdicts, trouble="the child process was ended by SIGKILL")
    cache.keep(troubled, 2)
    assert cache.recall(2) == troubled
    monkeypatch.setattr(cache, "_here", {})
    assert cache.recall(2) == Findings(FOUND.verdicts)


def test_clearing_forgets_everything(folder):
    cache.keep(FOUND, 2)
    (folder / "products.json").write_text("{}")  # of an earlier version
    with cache.lock():
        pass
    assert cache.clear() == [folder / "machine.json", folder / "products.json"]
    assert cache.recall(2) is None
    assert cache.clear() == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"FULLSTRIDE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/machine.json"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/fullstride/machine.json"),
        ({"XDG_CACHE_HOME": "relative"}, "/h/.cache/fullstride/machine.json"),
        ({}, "/h/.cache/fullstride/machine.json"),
    ],
)
def test_place_of_the_cache(monkeypatch, environment, place):
    for name in ("FULLSTRIDE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"HOME": "/h"}).items():
        monkeypatch.setenv(name, value)
    assert str(cache.file()) == place


def test_one_process_waits_for_the_other(monkeypatch):
    code = "import time\nfrom fullstride.backends import cache\nwith cache.lock():\n  print(1, flush=True)\n  input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    other.stdout.readline()
    entered = threading.Event()

    def enter():
        with cache.lock():
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.3)
    other.communicate("\n")
    assert entered.wait(20)
    thread.join()


def test_a_lock_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(cache, "_WAIT", 0.2)
    with cache.lock(), cache.lock():  # each opens the file anew
        pass


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no such users")
def test_no_lock_to_be_had_is_no_error(folder):
    folder.write_text("a file where the folder should be")
    with cache.lock():
        pass

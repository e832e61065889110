"""Saving, pruning and loading; damaged files. What kills the process or fills the disk: test_checkpoint_faults.py."""

import contextlib
import errno
import json
import logging
import math
import os

import pytest
import torch

from fullstride import durable
from fullstride.train.checkpoints import directory
from fullstride.train.checkpoints.store import InvalidCheckpoint, NonFiniteWeights, Snapshot, Store

PARTS = ["model.safetensors", "optimizer.safetensors", "gradients.safetensors", "state.json", "manifest.json"]


def snapshot(step, value=None):
    """With the step, or the value, in every part of it."""
    value = float(step if value is None else value)
    tensors = {"weight": torch.full((7, 5), value), "bias": torch.full((5,), value)}
    return Snapshot(
        step,
        {
            "model": {**tensors, "tied": tensors["weight"], "steps": torch.tensor(step)},
            "optimizer": {"exp_avg": torch.full((7, 5), value, dtype=torch.bfloat16)},
            "gradients": {"weight": torch.full((7, 5), value)},
        },
        {"state": {"value": value, "list": [1, None, "text", math.inf], "nested": {"x": True}}},
    )


def assert_same(found, expected):
    assert found is not None
    assert (found.step, found.documents) == (expected.step, expected.documents)
    assert found.tensors.keys() == expected.tensors.keys()
    for part, tensors in expected.tensors.items():
        assert found.tensors[part].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found.tensors[part][name].dtype is tensor.dtype
            assert torch.equal(found.tensors[part][name], tensor)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def warnings(caplog):
    """The warnings of this test so far."""
    caplog.set_level(logging.WARNING, "fullstride")
    return lambda: [record.getMessage() for record in caplog.records]


# ---- saving and pruning ----------------------------------------------------------------------------------------------


def test_what_was_saved_is_loaded(tmp_path):
    store = Store(tmp_path / "made" / "on demand")
    path = store.save(snapshot(3))
    assert names(path) == sorted(PARTS)
    assert_same(store.newest(), snapshot(3))
    assert_same(store.load(path), snapshot(3))


def test_an_empty_or_missing_folder_has_none(tmp_path):
    assert Store(tmp_path).newest() is None
    assert Store(tmp_path / "missing").best() is None
    assert Store(tmp_path / "missing").steps() == []


def test_the_newest_steps_and_the_last_best_are_kept(tmp_path):
    store = Store(tmp_path, keep=2)
    for step in (9, 10, 11, 99_999_999, 100_000_000):
        store.save(snapshot(step))
        if step < 12:
            store.save(snapshot(step), "best")
    assert names(tmp_path) == ["best-00000011", "step-100000000", "step-99999999"]
    assert store.steps() == [99_999_999, 100_000_000]
    assert_same(store.newest(), snapshot(100_000_000))
    assert_same(store.best(), snapshot(11))


def test_the_best_is_the_last_saved_as_best_after_going_back(tmp_path):
    store = Store(tmp_path)
    store.save(snapshot(100), "best")
    store.save(snapshot(95), "best")
    assert_same(store.best(), snapshot(95))


def test_nothing_is_pruned_before_the_new_one_is_read_back(tmp_path, monkeypatch):
    store = Store(tmp_path, keep=1)
    store.save(snapshot(1))
    seen = []
    verify = directory.verify

    def watched(path, checksums=True, **options):
        seen.append((path.name, checksums, names(tmp_path)))
        verify(path, checksums, **options)

    monkeypatch.setattr(directory, "verify", watched)
    store.save(snapshot(2))
    assert seen[0] == ("step-00000002", True, ["step-00000001", "step-00000002"])
    assert names(tmp_path) == ["step-00000002"]


def test_one_that_reads_back_wrong_is_an_error_and_not_kept(tmp_path, monkeypatch):
    store = Store(tmp_path, keep=1)
    store.save(snapshot(1))
    write = durable.write

    def lose_a_bit(path, *arguments):
        written = write(path, *arguments)
        if path.name == "optimizer.safetensors":
            flip(path, -1)
        return written

    monkeypatch.setattr(durable, "write", lose_a_bit)
    with pytest.raises(OSError, match=r"step 2 not saved .*optimizer\.safetensors is damaged") as raised:
        store.save(snapshot(2))
    assert raised.value.errno == errno.EIO
    with pytest.raises(OSError, match="step 1 not saved"):
        store.save(snapshot(1, value=7))
    assert names(tmp_path) == ["step-00000001"]
    assert_same(store.newest(), snapshot(1))


def test_truncated_ones_do_not_push_out_whole_ones(tmp_path):
    store = Store(tmp_path, keep=2)
    store.save(snapshot(1))
    truncate(store.save(snapshot(2)) / "model.safetensors")
    store.save(snapshot(3))
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_one_just_saved_stays_though_later_ones_are_there(tmp_path):
    store = Store(tmp_path, keep=1)
    store.save(snapshot(9))
    store.save(snapshot(5))
    assert "step-00000005" in names(tmp_path)


def test_a_step_saved_again_replaces_the_first(tmp_path):
    store = Store(tmp_path)
    store.save(snapshot(4, value=1))
    store.save(snapshot(4, value=2))
    assert names(tmp_path) == ["step-00000004"]
    assert_same(store.newest(), snapshot(4, value=2))


def test_one_set_aside_comes_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(snapshot(4, value=1))
    rename = os.rename

    def refused(source, target):
        if source.name.startswith(".partial"):
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(PermissionError, match=r"step 4 not saved in .*: Permission denied; those"):
        store.save(snapshot(4, value=2))
    assert names(tmp_path) == ["step-00000004"]
    assert_same(store.newest(), snapshot(4, value=1))


def test_files_are_on_the_disk_before_the_manifest_and_that_before_the_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor):
        events.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def renamed(source, target):
        events.append(f"rename {os.path.basename(target)}")
        rename(source, target)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("the names of open files are told by Linux alone")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    Store(tmp_path).save(snapshot(1))
    assert events == [
        *(f"sync {name}" for name in PARTS),
        "sync .partial-step-00000001", "rename step-00000001", f"sync {tmp_path.name}",
    ]  # fmt: skip


@pytest.mark.parametrize("part", ["weight", "tied"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_weights_that_are_not_finite_are_not_saved_and_push_nothing_out(part, value, tmp_path):
    store = Store(tmp_path, keep=1)
    store.save(snapshot(1))
    bad = snapshot(2)
    bad.tensors["model"][part][6, 4] = value
    with pytest.raises(NonFiniteWeights, match="in weight at step 2; nothing was saved"):
        store.save(bad)
    assert names(tmp_path) == ["step-00000001"]


def test_states_that_are_not_finite_are_saved(tmp_path):
    store, state = Store(tmp_path), snapshot(1)
    state.tensors["gradients"]["weight"][0] = math.inf
    store.save(state)
    assert_same(store.newest(), state)


@pytest.mark.parametrize(
    ("document", "place"),
    [({"a": (1, 2)}, "tuple at state.a"), ({"a": {1: 2}}, "dict at state.a"), ([torch.ones(1)], "Tensor at state.0")],
)
def test_documents_that_json_would_change_are_refused(document, place, tmp_path):
    with pytest.raises(TypeError, match=place):
        Store(tmp_path).save(Snapshot(1, {}, {"state": document}))


@pytest.mark.parametrize("part", ["manifest", "../x", "", "a.b"])
def test_names_of_parts_are_plain(part, tmp_path):
    with pytest.raises(ValueError, match="name of a part"):
        Store(tmp_path).save(Snapshot(1, {}, {part: {}}))


def test_none_to_keep_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        Store(tmp_path, keep=0)


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(OSError, match=r"step 1 not saved in .*checkpoints: File exists") as raised:
        Store(tmp_path / "checkpoints").save(snapshot(1))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("num_pieces", range(1, 12))
def test_a_saving_given_up_at_any_piece_leaves_the_one_before(num_pieces, tmp_path):
    store = Store(tmp_path, keep=1)
    store.save(snapshot(1))
    left = num_pieces

    def poll():
        nonlocal left
        left -= 1
        if not left:
            raise InterruptedError

    before = names(tmp_path)
    with contextlib.suppress(OSError):
        store.save(snapshot(1, value=5), poll=poll)
    assert store.newest().documents["state"]["value"] in (1, 5)
    assert [name for name in names(tmp_path) if "partial" in name] == []
    store.save(snapshot(1, value=6))
    assert names(tmp_path) == before
    assert_same(store.newest(), snapshot(1, value=6))


# ---- what a killed process leaves ------------------------------------------------------------------------------------


def test_leftovers_are_removed_by_the_next_saving_and_not_loaded(tmp_path, warnings):
    store = Store(tmp_path)
    path = store.save(snapshot(1))
    os.rename(path, tmp_path / ".partial-step-00000002")
    (tmp_path / ".partial-file").write_text("")
    assert store.newest() is None
    store.save(snapshot(3))
    assert names(tmp_path) == ["step-00000003"]
    assert warnings() == []


def test_one_set_aside_and_not_yet_replaced_is_found_and_put_back(tmp_path):
    store = Store(tmp_path)
    path = store.save(snapshot(1))
    os.rename(path, tmp_path / ".replaced-step-00000001")
    assert_same(store.newest(), snapshot(1))
    assert store.steps() == [1]
    store.save(snapshot(2))
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("broken", ["step-00000001", ".replaced-step-00000001"])
def test_of_two_of_one_step_the_valid_one_stays(broken, tmp_path, warnings):
    store = Store(tmp_path)
    os.rename(store.save(snapshot(1)), tmp_path / ".replaced-step-00000001")
    os.rename(Store(tmp_path / "other").save(snapshot(1)), tmp_path / "step-00000001")
    flip(tmp_path / broken / "model.safetensors", -1)
    assert_same(store.newest(), snapshot(1))
    store.save(snapshot(2))
    assert_same(store.load(tmp_path / "step-00000001"), snapshot(1))
    assert len(warnings()) == (broken[0] != ".")


# ---- damage ----------------------------------------------------------------------------------------------------------


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "truncated": truncate,
    "emptied": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "first bit flipped": lambda path: flip(path, 0),
    "a bit flipped in the middle": lambda path: flip(path, path.stat().st_size // 2, 5),
    "last bit flipped": lambda path: flip(path, -1, 7),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(part, damage, tmp_path, warnings):
    store = Store(tmp_path)
    store.save(snapshot(1))
    path = store.save(snapshot(2))
    DAMAGES[damage](path / part)
    assert_same(store.newest(), snapshot(1))
    (warning,) = warnings()
    assert warning.startswith(f"checkpoint {path} passed over: {part} ")
    assert "\n" not in warning


@pytest.mark.parametrize("part", PARTS)
def test_no_bit_in_any_place_of_a_file_may_change_unnoticed(part, tmp_path):
    store = Store(tmp_path)
    path = store.save(snapshot(1))
    whole = (path / part).read_bytes()
    for position in range(0, len(whole), 5):  # so that each of the eight bits has its turn in many
        flip(path / part, position, position % 8)
        with pytest.raises(InvalidCheckpoint, match=part):
            store.load(path)
        (path / part).write_bytes(whole)
    store.load(path)


def test_all_damaged_is_none_with_a_warning_each(tmp_path, warnings):
    store = Store(tmp_path)
    for path in [store.save(snapshot(step)) for step in (1, 2)]:
        (path / "manifest.json").unlink()
    assert store.newest() is None
    assert len(warnings()) == 2


def test_one_removed_by_a_running_process_while_it_is_read_gives_way_to_the_next(tmp_path, monkeypatch):
    store = Store(tmp_path, keep=1)
    store.save(snapshot(1))
    load = directory.load

    def too_late(path):
        monkeypatch.undo()
        store.save(snapshot(2))
        return load(path)

    monkeypatch.setattr(directory, "load", too_late)
    assert_same(store.newest(), snapshot(2))


def seal(path, **changes):
    """A manifest that somebody wrote on purpose."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    (path / "manifest.json").write_bytes(directory._seal({**manifest, **changes}))


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", "model.pkl", "model.pt"])
def test_files_of_other_kinds_and_places_are_not_opened(name, tmp_path):
    store = Store(tmp_path)
    path = store.save(snapshot(1))
    (tmp_path / "secret.json").write_text("{}")
    seal(path, files={name: durable.measure(tmp_path / "secret.json")._asdict()})
    with pytest.raises(InvalidCheckpoint, match="which no checkpoint has"):
        store.load(path)


def test_a_later_format_is_said_to_be_one(tmp_path):
    store = Store(tmp_path)
    path = store.save(snapshot(1))
    seal(path, format=2)
    with pytest.raises(InvalidCheckpoint, match="expected format 1, got 2"):
        store.load(path)


def test_further_files_are_left_alone(tmp_path):
    store = Store(tmp_path)
    (store.save(snapshot(1)) / "note.txt").write_text("mine")
    assert_same(store.newest(), snapshot(1))

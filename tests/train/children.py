"""Processes of their own for what cannot be undone: being killed, other mounts. Forked from one that has torch."""

import ctypes
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pytest", "torch", "fullstride.train.checkpoints.saver"])

# sched.h and sys/mount.h of Linux
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 16384, 1 << 18


def start(function: Callable[..., None], *arguments: Any) -> Any:
    """The running process; .pid, .kill(), .join(), .exitcode."""
    process = _context.Process(target=function, args=arguments)
    process.start()
    return process


def event() -> Any:
    """To be passed to a process, which sets it."""
    return _context.Event()


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns there; what it raises fails this test, and what it skips is skipped."""
    ours, theirs = _context.Pipe()
    process = start(_answer, theirs, function, *arguments)
    theirs.close()
    try:
        outcome, value = ours.recv()
    except EOFError:
        outcome, value = "failed", "it ended without an answer"
    finally:
        process.join()
    if outcome == "failed":
        pytest.fail(value)
    if outcome == "skipped":
        pytest.skip(value)
    return value


def _answer(pipe: Any, function: Callable[..., Any], *arguments: Any) -> None:
    try:
        pipe.send(("done", function(*arguments)))
    except pytest.skip.Exception as skipped:
        pipe.send(("skipped", str(skipped)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


# ---- for functions that run there ------------------------------------------------------------------------------------


def mount_small_disk(folder: Path, num_bytes: int) -> None:
    """An empty disk of that size, which only this process sees and which ends with it."""
    folder.mkdir()
    _leave_mounts()
    _mount("tmpfs", folder, 0, f"size={num_bytes}")


def make_read_only(folder: Path) -> None:
    """The disk mounted there."""
    _mount("tmpfs", folder, _MS_REMOUNT | _MS_RDONLY)


def _leave_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if not hasattr(libc, "unshare"):
        pytest.skip("mounts of a process of its own are Linux's")
    if libc.unshare(_CLONE_NEWNS) != 0:  # not root: then as root of a user namespace
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
            pytest.skip(f"this system gives no mounts to a process: {os.strerror(ctypes.get_errno())}")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _mount("none", Path("/"), _MS_REC | _MS_PRIVATE)


def _mount(kind: str, path: Path, flags: int, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", bytes(path), kind.encode(), ctypes.c_ulong(flags), options.encode()) != 0:
        pytest.skip(f"this system does not let a process mount {kind}: {os.strerror(ctypes.get_errno())}")

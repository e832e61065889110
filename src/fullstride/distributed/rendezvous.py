"""How the processes of a run find each other, and what listens where.

Under torchrun the processes talk to its store. Started by other means, with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT set, the first one has the store, which then listens at MASTER_ADDR alone. Processes that
`fullstride train --nproc` started on one machine meet in a file. In all cases gloo listens only on the interface that
leads to MASTER_ADDR, unless GLOO_SOCKET_IFNAME names another. (torchrun's own store listens on all interfaces.)

A script may train several times: each time the processes meet by names of their own, as those of the last time hold
addresses that are gone.
"""

import contextlib
import datetime
import functools
import importlib.util
import ipaddress
import json
import os
import socket
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from . import launched
from .launched import STORE_FILE

_POLL = 0.2  # seconds
_meetings = 0  # of this process so far
_BINDINGS = {"mpi": "a torch that was built with MPI", "ccl": "oneccl_bindings_for_pytorch"}


def join(backend: str, timeout: float) -> None:
    """Makes the process group of all. ValueError in words for what people get wrong."""
    global _meetings
    check_backend(backend)
    limit = datetime.timedelta(seconds=timeout)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    choose_interface()
    _meetings += 1
    try:
        if STORE_FILE in os.environ:
            store = _file_store(size)
        elif _has_agent_store():
            store = _agent_store(rank, size, limit)
        else:
            store = _tcp_store(rank, size, limit)
        backend, limit = _as_the_first(store, rank, backend, limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        dist.all_reduce(torch.zeros(1))  # one that ended meanwhile is noticed here
    except (RuntimeError, OSError) as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        raise ValueError(_in_words(error, size, limit.total_seconds())) from None


def _as_the_first(
    store: dist.Store, rank: int, backend: str, limit: datetime.timedelta
) -> tuple[str, datetime.timedelta]:
    """What the first process wants: of a run that goes on, it alone may know the config."""
    if rank == 0:
        store.set("how", json.dumps([backend, limit.total_seconds()]))
        return backend, limit
    wanted, seconds = json.loads(store.get("how"))
    check_backend(wanted)
    return wanted, datetime.timedelta(seconds=seconds)


def begins(is_free: bool) -> bool:
    """For the first process: whether no attempt of this command has begun a run yet. It is noted if there is room for
    one. Before an attempt has, what stands in a folder is somebody else's."""
    if STORE_FILE in os.environ:
        mark = Path(f"{os.environ[STORE_FILE]}-began")
        begun = mark.exists()
        if is_free:
            mark.touch()
    elif _has_agent_store():
        store = _of_agent(datetime.timedelta(seconds=60))
        begun = store.check(["began"])
        if is_free:
            store.set("began", "")
    else:  # nobody starts it anew
        return True
    return not begun


def check_backend(backend: str) -> None:
    if backend == "ccl" and importlib.util.find_spec("oneccl_bindings_for_pytorch"):
        importlib.import_module("oneccl_bindings_for_pytorch")  # which makes it known to torch
    known = {"gloo": dist.is_gloo_available(), "mpi": dist.is_mpi_available(), "ccl": hasattr(dist.Backend, "CCL")}
    if not known[backend]:
        raise ValueError(f"distributed.backend: expected one that is here, got {backend}, which needs"
                         f" {_BINDINGS.get(backend, 'another torch')}; gloo is in every torch")  # fmt: skip


def choose_interface() -> None:
    """GLOO_SOCKET_IFNAME is that on the way to MASTER_ADDR. Left to itself gloo takes the one of the host's name."""
    address = os.environ.get("MASTER_ADDR")
    if STORE_FILE in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = interface_to("127.0.0.1") or "lo"
    elif address and "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_to(address)
        if name is None:
            raise ValueError(
                f"MASTER_ADDR: expected an address that an interface of this host leads to, got {address}; check it, or"
                " set GLOO_SOCKET_IFNAME to the interface to use"
            )
        _check_that_others_reach(name, address)
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _check_that_others_reach(interface: str, address: str) -> None:
    """A host's own name often leads to 127.0.1.1 there, and elsewhere to its address."""
    several = os.environ["WORLD_SIZE"] != os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    if several and _is_loopback(interface) and not address.startswith(("127.", "::1", "localhost")):
        raise ValueError(
            f"MASTER_ADDR: expected an address that other hosts reach, got {address}, which is this host's loopback"
            " interface here; give the number, or set GLOO_SOCKET_IFNAME"
        )


def interface_to(host: str) -> str | None:
    """The name of the interface from which packets to a host leave; None where this cannot be found out."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, place in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
                probe.connect(place)  # sends nothing
                own = probe.getsockname()[0]
                for name, addresses in psutil.net_if_addrs().items():
                    if any(each.address.partition("%")[0] == own.partition("%")[0] for each in addresses):
                        return name
    return None


def _is_loopback(interface: str) -> bool:
    for each in psutil.net_if_addrs().get(interface, []):
        with contextlib.suppress(ValueError):  # of hardware
            if ipaddress.ip_address(each.address.partition("%")[0]).is_loopback:
                return True
    return False


def _file_store(size: int) -> dist.Store:
    return dist.FileStore(f"{os.environ[STORE_FILE]}-{launched.attempt()}-{_meetings}", size)


def _has_agent_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _of_agent(limit: datetime.timedelta) -> dist.Store:
    """torchrun's, which lives as long as its agent on the first host: all attempts have it."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.PrefixStore("fullstride", dist.TCPStore(host, port, is_master=False, timeout=limit))


def _agent_store(rank: int, size: int, limit: datetime.timedelta) -> dist.Store:
    """With names of its own for each start: env:// of torch 2.13 takes those of the last one again, and all wait for
    processes that are gone (see pytorch issue 135712).

    Each host's agent counts by itself how often it has started. A process that ended before it came here was started
    anew by one of them alone: those who wait for it then end, so that their agents follow.
    """
    store, attempt = _of_agent(limit), launched.attempt()
    own = dist.PrefixStore(f"attempt-{attempt}-{_meetings}", store)
    for each in range(attempt + 1):  # whoever waits in an older one may have missed those between
        store.set(f"came-{each}", "")
    own.set(f"here-{rank}", "")
    latest = time.monotonic() + limit.total_seconds()
    while not own.check([f"here-{each}" for each in range(size)]):
        if store.check([f"came-{attempt + 1}"]):
            raise ValueError(f"another host has started its processes anew more than {attempt} times, which is as often"
                             " as this one: it follows if it may, see --max-restarts")  # fmt: skip
        if time.monotonic() > latest:
            raise RuntimeError("timed out")
        time.sleep(_POLL)
    return own


def _tcp_store(rank: int, size: int, limit: datetime.timedelta) -> dist.Store:
    store = _kept_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank, size, limit)
    return dist.PrefixStore(f"meeting-{_meetings}", store)


@functools.cache
def _kept_store(host: str, port: int, rank: int, size: int, limit: datetime.timedelta) -> dist.Store:
    """For as long as the process lives: closed between two trainings, it would be so under others that come early."""
    if rank:
        return dist.TCPStore(host, port, size, is_master=False, timeout=limit)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(size)
    return dist.TCPStore(
        host, port, size, is_master=True, timeout=limit, wait_for_workers=True, master_listen_fd=listener.detach()
    )


def _in_words(error: Exception, size: int, timeout: float) -> str:
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    text = str(error)
    if "Address already in use" in text or "EADDRINUSE" in text:
        return f"MASTER_PORT: expected a free port, got {place}, which is in use; give another to all processes"
    if "Cannot assign requested address" in text:
        return f"MASTER_ADDR: expected an address of this host, which runs the first process, got {place}"
    if "connection refused" in text.lower():
        return (
            f"the processes found each other at {place}, but one could not connect to another: {_short(text)}; check"
            " for a firewall, and that GLOO_SOCKET_IFNAME, if it is set, names an interface that all reach"
        )
    if "timed out" in text.lower() or "timeout" in text.lower():
        return (
            f"expected {size} processes to meet at {place} within {timeout:g} s, and not all came; check that every"
            " host was started with the same number of processes, and reaches that address"
        )
    return f"the processes could not meet at {place}: {_short(text)}"


def _short(text: str) -> str:
    return " ".join(text.split())[:300]

"""Several hosts on one machine, with links that can be slow, lossy or cut, for tests and for benchmarks.

    with hosts.network(2) as (a, b):
        a.shape(mbit=100, delay_ms=5)
        server = b.start([sys.executable, "server.py", b.address])
        answer = a.run([sys.executable, "client.py", b.address])
        b.cut()

A host is a network namespace. Its interface eth0 is one end of a veth pair. The other end, its port, is in a namespace
that has a bridge and nothing else, so that the network of the machine itself stays as it is. All else is the machine's:
cores, memory, files, and the hostname, which does not lead to the address of eth0. So set GLOO_SOCKET_IFNAME=eth0 for
gloo. `ip netns exec` mounts a new /sys: processes see eth0 there, and no cgroups.

The kernel limits rates (tbf). Delay and loss are made by a process that passes on every frame between port and bridge,
since small kernels, Firecracker's for one, lack netem. All of this needs Linux and root.
"""

import collections
import contextlib
import functools
import itertools
import os
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..patience import PATIENCE, wait_until

_PREFIX = "fullstride"
_subnets = itertools.count()


class Host:
    """One of a network's hosts."""

    interface = "eth0"

    def __init__(self, network: str, number: int, address: str) -> None:
        self.address = address
        self._switch, self.namespace = _switch(network), f"{network}-host{number}"
        self._port, self._inner, self._outer = f"port{number}", f"inner{number}", f"outer{number}"
        self._ends = [(self.namespace, self.interface), (self._switch, self._port)]
        self._processes: list[subprocess.Popen[Any]] = []
        self._relay: subprocess.Popen[str] | None = None
        _do(f"ip netns add {self.namespace}")
        _do(f"ip -n {self.namespace} link set lo up")
        _do(f"ip -n {self._switch} link add {self._port} type veth peer {self.interface} netns {self.namespace}")
        _do(f"ip -n {self._switch} link set {self._port} master bridge")
        _raise(self._switch, self._port)
        _raise(self.namespace, self.interface)
        _do(f"ip -n {self.namespace} address add {address}/24 dev {self.interface}")
        self._wait_for_link()

    def start(self, command: Sequence[str], env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[Any]:
        """The running process, in a session of its own. env is added to what is set here, options are Popen's.

        At the end of the network it is killed, with all that it started, and its pipes are closed.
        """
        options |= {"env": {**os.environ, **(env or {})}, "start_new_session": True}
        process = subprocess.Popen(_inside(self.namespace, command), **options)
        self._processes.append(process)
        return process

    def run(
        self, command: Sequence[str], timeout: float = PATIENCE, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """.returncode, .stdout and .stderr of a command that ends by itself."""
        environment = {**os.environ, **(env or {})}
        words = _inside(self.namespace, command)
        return subprocess.run(words, env=environment, timeout=timeout, capture_output=True, text=True, check=False)

    def shape(self, mbit: float | None = None, delay_ms: float = 0, loss: float = 0) -> None:
        """What the link does from now on, the same in both directions: None and 0 for no limit, no delay, no loss.

        A frame from one shaped host to another passes two links, so that their delays add up. loss is the share of
        frames that are lost, 0.01 for 1 %. Frames that are under way when this is called are lost.
        """
        if not (mbit is None or mbit > 0) or delay_ms < 0 or not 0 <= loss <= 1:
            raise ValueError(f"mbit above 0, delay_ms from 0 on, loss from 0 to 1; got {mbit}, {delay_ms}, {loss}")
        self._pass_on_directly()
        for namespace, interface in self._ends:
            _do(f"tc -n {namespace} qdisc replace dev {interface} root {_discipline(mbit)}")
        if delay_ms > 0 or loss > 0:
            self._pass_on_by_relay(delay_ms / 1000, loss)

    def unshape(self) -> None:
        self.shape()

    def cut(self) -> None:
        """Frames are lost from now on, those under way too. TCP connections live on: nobody tells them."""
        _do(f"ip -n {self._switch} link set {self._port} down")

    def restore(self) -> None:
        _do(f"ip -n {self._switch} link set {self._port} up")
        self._wait_for_link()

    def sent_bytes(self) -> int:
        """Since the network was made, with the headers of Ethernet, IP and TCP."""
        return int(_do(f"ip netns exec {self.namespace} cat /sys/class/net/{self.interface}/statistics/tx_bytes"))

    def _pass_on_by_relay(self, delay: float, loss: float) -> None:
        """port - relay - inner = outer - bridge"""
        _do(f"ip -n {self._switch} link add {self._outer} type veth peer {self._inner}")
        _do(f"ip -n {self._switch} link set {self._port} nomaster")
        if loss > 0:  # each frame by itself, as on a wire: else up to 64 KB of a TCP stream would be lost at once
            self._set_segments(self.namespace, self.interface, 1)
            self._set_segments(self._switch, self._outer, 1)
        _raise(self._switch, self._inner)
        command = [sys.executable, "-m", __name__, self._port, self._inner, str(delay), str(loss)]
        folder = Path(__file__).parents[2]
        words = _inside(self._switch, command)
        self._relay = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if self._relay.stdout.readline() != "ready\n":
            raise RuntimeError("the process that delays frames did not start; its error stands above")
        _do(f"ip -n {self._switch} link set {self._outer} master bridge")
        _raise(self._switch, self._outer)
        _wait_for("forwarding", self._switch, self._outer)

    def _pass_on_directly(self) -> None:
        if self._relay is not None:
            _end(self._relay)
            self._relay = None
            _do(f"ip -n {self._switch} link delete {self._inner}")
            self._set_segments(self.namespace, self.interface, 65535)
            _do(f"ip -n {self._switch} link set {self._port} master bridge")

    def _wait_for_link(self) -> None:
        _wait_for("UP", self.namespace, self.interface)
        _wait_for("UP" if self._relay else "forwarding", self._switch, self._port)

    @staticmethod
    def _set_segments(namespace: str, interface: str, number: int) -> None:
        """How many segments of TCP may be in what the kernel passes as one frame."""
        _do(f"ip -n {namespace} link set {interface} gso_max_segs {number}")

    def _close(self) -> None:
        for process in [*self._processes, *([self._relay] if self._relay else [])]:
            _end(process)


@contextlib.contextmanager
def network(num_hosts: int) -> Iterator[tuple[Host, ...]]:
    """Hosts that reach each other and nothing else. All of it is gone at the end, with all that runs there."""
    if not 1 <= num_hosts <= 254:
        raise ValueError(f"a network has 1 to 254 hosts, not {num_hosts}")
    _remove_leftovers()
    name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
    subnet = f"10.77.{next(_subnets) % 256}"
    made: list[Host] = []
    try:
        _do(f"ip netns add {_switch(name)}")
        _do(f"ip -n {_switch(name)} link add bridge type bridge mcast_snooping 0")
        _raise(_switch(name), "bridge")
        for number in range(num_hosts):
            made.append(Host(name, number, f"{subnet}.{number + 1}"))
        yield tuple(made)
    finally:
        for host in made:
            host._close()
        for namespace in _namespaces():
            if namespace.startswith(f"{name}-"):
                _remove(namespace)


@functools.cache
def why_not() -> str | None:
    """Why there can be no hosts here, found out by making one; None if there can."""
    try:
        with network(1) as (host,):
            host.shape(mbit=100, delay_ms=1, loss=0.5)
            host.cut()
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


class _Impossible:
    """Finds out when the first test is about to run, not when tests are collected."""

    def __bool__(self) -> bool:
        return why_not() is not None


needs_hosts = pytest.mark.skipif(_Impossible(), reason="needs network namespaces and tc: hosts.why_not() says more")


# ---- namespaces ------------------------------------------------------------------------------------------------------


def _switch(network: str) -> str:
    return f"{network}-switch"


def _inside(namespace: str, command: Sequence[str]) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


def _do(command: str) -> str:
    """What it printed."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{command}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _raise(namespace: str, interface: str) -> None:
    with contextlib.suppress(RuntimeError):  # a kernel without IPv6
        _do(f"ip -n {namespace} link set {interface} addrgenmode none")  # making such addresses sends packets
    _do(f"ip -n {namespace} link set {interface} up")


def _wait_for(state: str, namespace: str, interface: str) -> None:
    """The kernel brings interfaces up in its own time, and loses the frames until then."""
    wait_until(lambda: f"state {state} " in _do(f"ip -n {namespace} -details link show {interface}"))


def _discipline(mbit: float | None) -> str:
    if mbit is None:
        return "noqueue"
    rate = mbit * 1e6 / 8
    burst = max(5000, int(rate / 1000))  # 1 ms: timers are not much more precise on a busy machine
    limit = burst + max(1 << 17, int(rate / 20))  # what waits: 50 ms, and never less than one burst of TCP, 64 KB
    return f"tbf rate {mbit}mbit burst {burst} limit {limit}"


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _do("ip netns list").splitlines()]


def _remove_leftovers() -> None:
    """Of processes that were killed."""
    for namespace in _namespaces():
        prefix, _, rest = namespace.partition("-")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(RuntimeError):  # another process may be removing it too
                _remove(namespace)


def _remove(namespace: str) -> None:
    """With all that runs there."""
    wait_until(lambda: not _killed(namespace))
    _do(f"ip netns delete {namespace}")


def _killed(namespace: str) -> list[str]:
    pids = _do(f"ip netns pids {namespace}").split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return pids


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError), process:  # waits and closes its pipes
        pass


# ---- the process that delays and loses frames ------------------------------------------------------------------------

# linux/if_packet.h and asm-generic/socket.h, what Python has no names for
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_ETH_P_ALL = 3


def _relay(one: str, other: str, delay: float, loss: float) -> None:
    """Passes on the frames of two interfaces, each to the other."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # a busy machine adds no delay of its own
    ends = [_open(one), _open(other)]
    targets = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: collections.deque[tuple[float, bytes, socket.socket]] = collections.deque()  # the first is due first
    print("ready", flush=True)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], timeout)[0]:
            with contextlib.suppress(OSError):  # the link is cut
                frame = end.recv(1 << 17)
                if random.random() >= loss:
                    waiting.append((time.monotonic() + delay, frame, targets[end]))
        while waiting and waiting[0][0] <= time.monotonic():
            _, frame, target = waiting.popleft()
            with contextlib.suppress(OSError):  # the link is cut, or the queue of the interface full
                target.send(frame)


def _open(interface: str) -> socket.socket:
    """Gives and takes frames. Those that are for later segmentation stay in one piece, of up to 64 KB."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    end.setblocking(False)
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
        end.setsockopt(socket.SOL_SOCKET, option, 1 << 26)
    end.bind((interface, _ETH_P_ALL))
    return end


if __name__ == "__main__":
    _relay(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))

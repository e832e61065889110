import errno
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ..patience import PATIENCE, wait_until
from . import hosts

pytestmark = hosts.needs_hosts

# Servers say "ready" when they can be reached.
ECHO = """
import socket
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = server.accept()
for line in connection.makefile("rb"):
    connection.sendall(line)
    print("echoed", flush=True)
"""

TALK = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
lines = connection.makefile("rb")
for line in sys.stdin.buffer:
    start = time.monotonic()
    connection.sendall(line)
    print(lines.readline().decode().strip(), time.monotonic() - start, flush=True)
"""

RECEIVE = """
import hashlib, socket, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = server.accept()
digest, start = hashlib.sha256(), time.monotonic()
while data := connection.recv(1 << 16):
    digest.update(data)
print(digest.hexdigest(), time.monotonic() - start)
"""

SEND = """
import hashlib, random, socket, sys
data = random.Random(0).randbytes(int(sys.argv[2]))
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(data)
print(hashlib.sha256(data).hexdigest())
"""

COUNT = """
import itertools, socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 5000))
print("ready", flush=True)
print(next(i for i in itertools.count() if server.recv(9) == b"end"))
"""

TELL = """
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[3])):
    client.sendto(sys.argv[2].encode(), (sys.argv[1], 5000))
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def start(host: hosts.Host, code: str, *arguments: str) -> subprocess.Popen[str]:
    return host.start(python(code, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve(host: hosts.Host, code: str) -> subprocess.Popen[str]:
    server = start(host, code)
    assert read(server) == "ready"
    return server


def has_printed(process: subprocess.Popen[str], patience: float) -> bool:
    return bool(select.select([process.stdout.fileno()], [], [], patience)[0])


def read(process: subprocess.Popen[str]) -> str:
    assert has_printed(process, PATIENCE), "it prints nothing"
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def output(host: hosts.Host, code: str, *arguments: str) -> str:
    done = host.run(python(code, *arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def seconds_to_send(num_bytes: int, source: hosts.Host, target: hosts.Host) -> float:
    """Nothing of it may be missing or wrong."""
    receiver = serve(target, RECEIVE)
    sent = output(source, SEND, target.address, str(num_bytes))
    received, seconds = read(receiver).split()
    assert received == sent
    receiver.wait()
    return float(seconds)


def namespaces(pid: int) -> list[str]:
    """Those that a process has made and not removed."""
    listing = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if line.startswith(f"fullstride-{pid}-")]


def interfaces_of_machine() -> str:
    commands = (["ip", "-brief", "address"], ["ip", "route"])
    return "".join(subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in commands)


def is_gone(pid: int) -> bool:
    """A zombie is: who has to reap it may be busy."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# ---- networks --------------------------------------------------------------------------------------------------------


def test_hosts_reach_each_other():
    with hosts.network(3) as (a, b, c):
        for target in (b, c):
            serve(target, ECHO)
            client = start(a, TALK, target.address)
            tell(client, "hello")
            assert read(client).startswith("hello ")


def test_hosts_have_addresses_and_loopbacks_of_their_own():
    with hosts.network(2) as (a, b), socket.create_server(("127.0.0.1", 0)) as ours:
        assert len({a.address, b.address}) == 2
        port = str(ours.getsockname()[1])
        listen = "import socket, sys; socket.create_server((sys.argv[1], int(sys.argv[2])))"
        assert output(a, listen, "127.0.0.1", port) == ""  # not taken there
        assert output(a, listen, a.address, port) == ""
        assert a.run(python(listen, b.address, port)).returncode != 0


def test_hosts_do_not_reach_the_outside():
    connect = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"
    with hosts.network(1) as (a,), socket.create_server(("", 0)) as ours:
        port = str(ours.getsockname()[1])
        assert output(a, connect, "127.0.0.1", port) == str(errno.ECONNREFUSED)
        assert output(a, connect, "192.0.2.1", port) == str(errno.ENETUNREACH)


def test_the_machine_does_not_see_the_hosts():
    before = interfaces_of_machine()
    with hosts.network(2) as (a, b):
        a.shape(mbit=100, delay_ms=1)
        assert interfaces_of_machine() == before
        for host in (a, b):
            with socket.socket() as ours, pytest.raises(OSError, match="assign requested address"):
                ours.bind((host.address, 0))


def test_networks_are_apart():
    with hosts.network(1) as (a,), hosts.network(1) as (b,):
        assert a.address.rpartition(".")[0] != b.address.rpartition(".")[0]
        connect = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], 5000)))"
        assert output(a, connect, b.address) == str(errno.ENETUNREACH)


def test_processes_get_the_environment_and_more():
    with hosts.network(1) as (a,):
        code = "import os; print(os.environ['PATH'], os.environ['ROLE'])"
        assert a.run(python(code), env={"ROLE": "first"}).stdout.strip() == f"{os.environ['PATH']} first"


def test_sent_bytes_are_counted():
    with hosts.network(2) as (a, b):
        assert a.sent_bytes() == b.sent_bytes() == 0
        seconds_to_send(100_000, a, b)
        assert 100_000 < a.sent_bytes() < 120_000
        assert 0 < b.sent_bytes() < 20_000


# ---- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [{}, {"mbit": 100, "delay_ms": 1}], ids=["plain", "shaped"])
def test_a_connection_goes_on_when_its_link_is_restored(shape):
    with hosts.network(2) as (a, b):
        b.shape(**shape)
        server = serve(b, ECHO)
        client = start(a, TALK, b.address)
        tell(client, "before")
        assert read(client).startswith("before ")
        assert read(server) == "echoed"
        b.cut()
        sent = a.sent_bytes()
        tell(client, "meanwhile")
        wait_until(lambda: a.sent_bytes() > sent + 200)  # it was sent, and sent again
        assert not has_printed(server, 0)
        assert not has_printed(client, 0)
        b.restore()
        assert read(client).startswith("meanwhile ")


@pytest.mark.parametrize("direction", ["from", "to"])
def test_a_rate_holds_in_both_directions(direction):
    with hosts.network(2) as (a, b):
        a.shape(mbit=8)
        assert seconds_to_send(1_000_000, *((a, b) if direction == "from" else (b, a))) > 0.8


def test_a_delay_holds_in_both_directions_until_it_is_taken_back():
    def round_trip() -> float:
        tell(client, "x")
        return float(read(client).split()[1])

    with hosts.network(2) as (a, b):
        a.shape(delay_ms=50)
        serve(b, ECHO)
        client = start(a, TALK, b.address)
        assert round_trip() > 0.1
        a.shape(delay_ms=100)
        assert round_trip() > 0.2
        a.unshape()
        wait_until(lambda: round_trip() < 0.1)


@pytest.mark.parametrize("direction", ["from", "to"])
def test_the_said_share_of_frames_is_lost(direction):
    with hosts.network(2) as (a, b):
        source, target = (a, b) if direction == "from" else (b, a)
        seconds_to_send(1, source, target)  # they know each other's Ethernet addresses from then on
        a.shape(loss=0.5)
        server = serve(target, COUNT)
        output(source, TELL, target.address, "x", "200")
        while server.poll() is None:
            output(source, TELL, target.address, "end", "1")
        assert 50 < int(read(server)) < 150  # seven standard deviations


def test_tcp_loses_nothing_on_a_bad_link():
    with hosts.network(2) as (a, b):
        a.shape(mbit=100, delay_ms=1, loss=0.01)
        seconds_to_send(1_000_000, a, b)
        seconds_to_send(1_000_000, b, a)


@pytest.mark.parametrize("shape", [{"mbit": 0}, {"delay_ms": -1}, {"loss": 2}])
def test_impossible_links_are_refused(shape):
    with hosts.network(1) as (a,), pytest.raises(ValueError, match="got"):
        a.shape(**shape)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_nothing_is_left():
    with hosts.network(2) as (a, b):
        assert len(namespaces(os.getpid())) == 3
        a.shape(mbit=100, delay_ms=1)
        b.cut()
    assert namespaces(os.getpid()) == []


def test_nothing_is_left_by_a_body_that_raised():
    with pytest.raises(KeyError), hosts.network(2):
        raise KeyError
    assert namespaces(os.getpid()) == []


def test_processes_end_with_the_network():
    """The one that was started, and one that left its group."""
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    with hosts.network(1) as (a,):
        process = start(a, f"{code}; time.sleep(600)")
        grandchild = int(read(process))
        assert not is_gone(grandchild)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: is_gone(grandchild))


def test_leftovers_of_a_killed_process_are_removed():
    code = """
import time
from tests.distributed import hosts
with hosts.network(1) as (a,):
    print(a.start(["sleep", "600"]).pid, flush=True)
    time.sleep(600)
"""
    folder = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True) as killed:
        inside = int(read(killed))
        killed.kill()
    assert len(namespaces(killed.pid)) == 2
    assert not is_gone(inside)
    with hosts.network(1):
        assert namespaces(killed.pid) == []
        wait_until(lambda: is_gone(inside))


def test_why_not_names_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "No such file or directory: 'ip'" in str(hosts.why_not.__wrapped__())

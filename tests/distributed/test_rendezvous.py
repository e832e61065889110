import os
import socket
import sys

import pytest
import torch
import torch.distributed as dist

from fullstride.distributed import launched, rendezvous
from fullstride.distributed.world import joined

from .listening import listeners
from .processes import together

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net/tcp, and names interfaces by Linux's ioctl")


# ---- what goes wrong at the meeting ----------------------------------------------------------------------------------


def leave_group():
    """That of processes.py: what follows is as without torchrun, by the environment alone."""
    if dist.is_initialized():
        dist.destroy_process_group()
    for name in (launched.STORE_FILE, "GLOO_SOCKET_IFNAME"):
        os.environ.pop(name, None)


def meet(world, environment, timeout=60.0):
    leave_group()
    os.environ.update(environment)
    try:
        with joined(timeout=timeout) as found:
            return f"met {found.sum([1.0])[0]:g}"
    except ValueError as error:
        return str(error)


def meet_as(rank, environment):
    """One process, whose peers never come."""
    (said,) = together(1, meet, environment | {"RANK": str(rank)}, 2.0)
    assert "\n" not in said
    return said


def at(port, address="127.0.0.1", size=2):
    return {"WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}


LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture
def free_port():
    """Nobody else is given it at once: the kernel goes round."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_processes_meet_by_their_environment_alone(free_port):
    assert together(2, meet, at(free_port)) == ["met 2"] * 2


def test_a_port_in_use_is_told_in_a_line():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        place = f"127.0.0.1:{other.getsockname()[1]}"
        said = meet_as(0, at(other.getsockname()[1]))
    assert said == f"MASTER_PORT: expected a free port, got {place}, which is in use; give another to all processes"


def test_an_address_of_another_host_is_told_in_a_line(free_port):
    said = meet_as(0, at(free_port, "192.0.2.1") | LOOPBACK)  # for documents: nobody has it
    expected = "MASTER_ADDR: expected an address of this host, which runs the first process, got"
    assert said == f"{expected} 192.0.2.1:{free_port}"


def test_a_name_that_is_no_host_is_told_in_a_line(free_port):
    said = meet_as(0, at(free_port, "no-such-host.invalid") | LOOPBACK)
    assert said.startswith(f"the processes could not meet at no-such-host.invalid:{free_port}: ")


@pytest.mark.parametrize("rank", [0, 2])
def test_one_who_waits_in_vain_says_how_many_were_expected(free_port, rank):
    said = meet_as(rank, at(free_port, size=3))
    assert said.startswith(f"expected 3 processes to meet at 127.0.0.1:{free_port} within 2 s, and not all came; ")


@pytest.mark.parametrize(("backend", "needs"), [("mpi", "a torch that was built with MPI"), ("ccl", "oneccl_bindings")])
def test_a_backend_that_is_missing_is_told_in_a_line(backend, needs):
    if (backend == "mpi" and dist.is_mpi_available()) or hasattr(dist.Backend, "CCL"):
        pytest.skip(f"this torch has {backend}")
    with pytest.raises(ValueError, match=f"expected one that is here, got {backend}, which needs {needs}") as caught:
        rendezvous.check_backend(backend)
    assert "\n" not in str(caught.value)


def test_gloo_is_here():
    rendezvous.check_backend("gloo")


def meet_in_attempt(world, port, attempts):
    """As under torchrun, whose store lives on. One that is ahead of the others waits in vain."""
    environment = at(port) | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    own = attempts[world.rank]
    return meet(world, environment | {"TORCHELASTIC_RESTART_COUNT": str(own)}, 5.0 if own > min(attempts) else 60.0)


@pytest.fixture
def agent_store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_processes_of_the_same_attempt_meet(agent_store):
    for attempt in (0, 1, 2):
        assert together(2, meet_in_attempt, agent_store.port, (attempt, attempt)) == ["met 2"] * 2


@pytest.mark.parametrize("attempts", [(1, 2), (0, 2)])
def test_one_who_waits_in_an_older_attempt_ends_to_be_started_anew(attempts, agent_store):
    behind, ahead = together(2, meet_in_attempt, agent_store.port, attempts)
    assert behind.startswith("another host has started its processes anew more than")
    assert behind.endswith("it follows if it may, see --max-restarts")
    assert ahead.startswith("expected 2 processes to meet")


def meet_twice(world, environment):
    return [meet(world, environment), meet(world, environment)]


@pytest.mark.parametrize("has_agent", [False, True])
def test_a_script_may_train_twice(has_agent, agent_store, free_port):
    ways = {"TORCHELASTIC_USE_AGENT_STORE": "True", **at(agent_store.port)} if has_agent else at(free_port)
    assert together(2, meet_twice, ways) == [["met 2", "met 2"]] * 2


def meet_in_a_file_twice(world):
    dist.destroy_process_group()
    sums = []
    for _ in range(2):
        with joined(timeout=60.0) as found:
            sums += found.sum([1.0])
    return sums


def test_processes_of_one_machine_may_meet_twice():
    assert together(2, meet_in_a_file_twice) == [[2.0, 2.0]] * 2


def how_long(world, environment, timeouts):
    leave_group()
    os.environ.update(environment)
    with joined(timeout=timeouts[world.rank]):
        return dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def test_the_first_process_says_how_long_all_wait(free_port):
    assert together(2, how_long, at(free_port), (50.0, 90.0)) == [50.0] * 2


def begins(world, environment, frees):
    os.environ.update(environment)
    return [rendezvous.begins(is_free) for is_free in frees]


@pytest.mark.parametrize(
    ("frees", "expected"),
    [
        pytest.param([True, False], [True, False], id="of this command"),
        pytest.param([False, False], [True, True], id="of somebody else"),
        pytest.param([True, True, False], [True, False, False], id="ended before it made its folder"),
    ],
)
@pytest.mark.parametrize("has_agent", [False, True])
def test_a_run_is_that_of_the_command_if_an_attempt_had_room_for_it(frees, expected, has_agent, agent_store):
    environment = {"TORCHELASTIC_USE_AGENT_STORE": "True", **at(agent_store.port)} if has_agent else {}
    assert together(1, begins_without_file if has_agent else begins, environment, frees) == [expected]


def begins_without_file(world, environment, frees):
    leave_group()
    return begins(world, environment, frees)


def test_processes_that_do_not_reach_each_other_are_told_so_in_a_line(monkeypatch):
    """Each is here, but gloo's connections end nowhere."""
    for name, value in at(29400, "10.0.0.1").items():
        monkeypatch.setenv(name, value)
    text = "timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:11678$0"
    said = rendezvous._in_words(RuntimeError(text), 2, 1800.0)
    assert said.startswith("the processes found each other at 10.0.0.1:29400, but one could not connect to another")
    assert "GLOO_SOCKET_IFNAME" in said


# ---- what listens where ----------------------------------------------------------------------------------------------


@pytest.fixture
def no_interface_named(monkeypatch):
    """Nor after the test, in which one is."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be put back")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


def meet_and_look(world, environment):
    leave_group()
    os.environ.update(environment)
    with joined(timeout=60.0) as found:
        found.barrier()
        seen = listeners(), os.environ["GLOO_SOCKET_IFNAME"]
        found.barrier()
    return seen


@linux
def test_nothing_listens_but_at_the_address_of_the_first_process(free_port):
    first, second = together(2, meet_and_look, at(free_port))
    assert ("127.0.0.1", free_port) in first[0]  # the store
    assert free_port not in [port for _, port in second[0]]
    assert {address for address, _ in first[0] + second[0]} == {"127.0.0.1"}
    assert first[1] == second[1] == "lo"


def look(world):
    world.barrier()
    seen = listeners()
    world.barrier()
    return {address for address, _ in seen}, os.environ["GLOO_SOCKET_IFNAME"]


@linux
def test_processes_that_meet_in_a_file_listen_on_the_loopback_interface_alone():
    assert together(2, look) == [({"127.0.0.1"}, "lo")] * 2


@linux
def test_the_interface_to_this_host_is_the_loopback_one():
    assert rendezvous.interface_to("127.0.0.1") == "lo"


def test_of_a_host_that_is_not_known_no_interface_is_named():
    assert rendezvous.interface_to("no-such-host.invalid") is None


@pytest.mark.parametrize(("address", "local_size", "is_refused"), [
    ("first-host", "1", True), ("first-host", "2", False), ("127.0.0.1", "1", False), ("localhost", "1", False),
])  # fmt: skip
@linux
def test_a_name_that_leads_to_the_loopback_interface_is_refused_for_several_hosts(
    address, local_size, is_refused, no_interface_named, monkeypatch
):
    monkeypatch.setattr(rendezvous, "interface_to", lambda host: "lo")  # as /etc/hosts of many has it
    for name, value in {"MASTER_ADDR": address, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": local_size}.items():
        monkeypatch.setenv(name, value)
    if not is_refused:
        rendezvous.choose_interface()
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        return
    with pytest.raises(ValueError, match="MASTER_ADDR: expected an address that other hosts reach, got first-host"):
        rendezvous.choose_interface()


def test_an_address_that_no_interface_leads_to_is_refused(no_interface_named, monkeypatch):
    """gloo by itself would take, and listen on, the interface of the host's name."""
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    with pytest.raises(ValueError, match="MASTER_ADDR: expected an address that an interface of this host leads"):
        rendezvous.choose_interface()


@linux
def test_an_interface_for_other_hosts_says_nothing_of_processes_that_meet_in_a_file(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "wg0")
    monkeypatch.setenv(launched.STORE_FILE, "store")
    rendezvous.choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_an_interface_that_somebody_named_is_kept(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "wg0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    rendezvous.choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "wg0"

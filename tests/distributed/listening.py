"""Who listens on which address, as Linux tells it."""

import contextlib
import os
import socket


def listeners(pid="self"):
    """(address, port) of all sockets of a process that listen."""
    own = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            rows = [line.split() for line in file][1:]
        for row in rows:
            if row[3] == "0A" and f"socket:[{row[9]}]" in own:
                address, port = row[1].split(":")
                found.append((_address(address), int(port, 16)))
    return found


def _address(text):
    """/proc has words of four bytes, each as the machine has it."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))

"""Small Python programs in processes of their own, as users and kernels treat them. None imports torch."""

import os
import subprocess
import sys


def start(code: str, *arguments: str, **options) -> subprocess.Popen:
    """Runs the code; it can be talked to through stdin and stdout, in lines."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **(streams | options))


def run_on_terminal(code: str, *arguments: str, **environment: str) -> str:
    """What the code writes to standard error if that is a terminal of 80 columns."""
    master, slave = os.openpty()
    known = {name: os.environ[name] for name in os.environ if name not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    settings = known | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"} | environment
    process = start(code, *arguments, stderr=slave, env=settings, text=False)
    os.close(slave)
    pieces = []
    try:
        while piece := os.read(master, 65536):
            pieces.append(piece)
    except OSError:  # Linux's way to say that the other side is closed
        pass
    os.close(master)
    process.communicate()
    assert process.returncode == 0, b"".join(pieces).decode()
    return b"".join(pieces).decode()

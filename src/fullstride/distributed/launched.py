"""What a launcher tells the processes that it starts, in the environment: torchrun, `fullstride train --nproc`, others.
No torch."""

import os
from collections.abc import Mapping

STORE_FILE = "FULLSTRIDE_STORE"
"""Names the file in which the processes of one machine meet."""
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_one_of_several(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process as one of several. ValueError if what it says makes no sense."""
    size, rank = environment.get("WORLD_SIZE"), environment.get("RANK")
    if rank is None:
        return False
    if size is None:
        raise ValueError(f"WORLD_SIZE: expected it to be set beside RANK {rank}; torchrun sets both")
    if not size.isdecimal() or int(size) < 1:
        raise ValueError(f"WORLD_SIZE: expected the number of processes, got {size!r}")
    if not rank.isdecimal() or int(rank) >= int(size):
        raise ValueError(f"RANK: expected a number from 0 to {int(size) - 1}, below WORLD_SIZE {size}; got {rank!r}")
    if int(size) == 1:
        return False
    missing = [name for name in _NAMES if not environment.get(name)]
    if missing and STORE_FILE not in environment:
        raise ValueError(f"{missing[0]}: expected it to be set beside RANK and WORLD_SIZE; torchrun sets all of them")
    port = environment.get("MASTER_PORT", "")
    if STORE_FILE not in environment and not (port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"MASTER_PORT: expected a number below 65536, got {port!r}")
    return True


def may_start_again() -> bool:
    """Whether torch's agent starts this process anew if it dies."""
    return number("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def attempt() -> int:
    """How often it has done so."""
    return number("TORCHELASTIC_RESTART_COUNT", 0)


def number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default

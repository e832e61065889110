"""How many threads a training process takes, and that none of them computes with denormals.

The cores are those of machine/cpu.py: physical ones that the affinity reaches, within the quota of the control groups,
whole, at least one; under torchrun and other launchers each process takes its share of them. torch counts neither quota
nor share, and torchrun sets OMP_NUM_THREADS=1 in every process. Fewer threads than there are cores, if not by torchrun,
are somebody's choice (OMP_NUM_THREADS, MKL_NUM_THREADS, torch.set_num_threads, a DataLoader's worker) and stay.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.data import get_worker_info

from .. import _native, runtime
from . import cpu, placement


@dataclass(frozen=True)
class Threads:
    count: int
    reason: str
    flushes: bool  # denormals are zeros, in all of them where the kernel library is there, else in the calling one

    def __str__(self) -> str:
        denormals = "flushed to zero" if self.flushes else "kept: this CPU cannot flush them"
        return f"threads {self.count}: {self.reason}; denormals {denormals}"


def set_threads(threads: int | None = None) -> Threads:
    """Sets the threads of torch and of the kernels, `threads` of them if given, and lets them flush denormals.

    The runtime of the process remembers what there was.
    """
    check_threads(threads)
    count = torch.get_num_threads()
    was = f"{count} thread{'s' if count > 1 else ''}, denormals {'flushed' if flushes_denormals() else 'kept'}"
    runtime.current().change("threads", as_they_are, was)
    count, reason = (threads, "as asked for") if threads is not None else _choose(cpu.describe())
    if count != torch.get_num_threads():
        torch.set_num_threads(count)
    return Threads(count, reason, _flush_denormals(True))


def check_threads(threads: int | None) -> None:
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise ValueError(f"threads: expected a whole number from 1 on, or None for the usable cores; got {threads!r}")


def as_they_are() -> Callable[[], None]:
    """A function that brings back the number of threads, and how they treat denormals, as both are now."""
    count, flushes, process = torch.get_num_threads(), flushes_denormals(), os.getpid()

    def put_back() -> None:
        if os.getpid() != process:  # a fork, in which the other threads are not, and would be waited for
            torch.set_flush_denormal(flushes)
            torch.set_num_threads(count)
            return
        if torch.get_num_threads() == 1:  # a team of one does not reach the others of an earlier, larger one
            torch.set_num_threads(2)
        _flush_denormals(flushes)
        if count != torch.get_num_threads():
            torch.set_num_threads(count)

    return put_back


def flushes_denormals() -> bool:
    """Whether the calling thread takes them for zeros. torch has no way to ask; a product tells."""
    tiny = torch.full((1,), 1e-39, dtype=torch.float32, device="cpu")
    return not (tiny * 0.5).view(torch.int32).any()


def _choose(machine: cpu.Cpu) -> tuple[int, str]:
    current, cores = torch.get_num_threads(), machine.num_usable_cores
    if get_worker_info() is not None:
        return current, "left alone in a worker of a DataLoader"
    num_processes, place = local_processes(), placement.pinned()
    share = place.cores if place is not None else max(1, cores // num_processes)
    usable = f"{cores} usable core{'s' if cores > 1 else ''}"
    reason = usable if num_processes == 1 else f"{usable} shared by {num_processes} processes"
    if place is not None:
        reason = f"CPUs {', '.join(map(str, place.cpus))} are this process's own"
    if _set_by_torchrun(num_processes):
        return share, f"{reason}, instead of torchrun's OMP_NUM_THREADS=1"
    wish = os.environ.get("OMP_NUM_THREADS")
    if wish and wish.split(",")[0].strip() == str(current) and current <= cores:
        return current, f"OMP_NUM_THREADS={wish}"
    if current < share:
        return current, f"torch was set to {current}"
    return share, f"{reason}, torch had taken {current}" if current > share else reason


def local_processes() -> int:
    """The processes of this training on this machine."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(number)) if number.isdecimal() else 1


def _set_by_torchrun(num_processes: int) -> bool:
    """torchrun sets it where the user has not and there are several processes (torch/distributed/run.py)."""
    several = num_processes > 1 and "TORCHELASTIC_RUN_ID" in os.environ
    return several and os.environ.get("OMP_NUM_THREADS") == "1"


def _flush_denormals(flush: bool) -> bool:
    """Operations on denormals were reported to be up to 50 times slower (pytorch issue 19651), and decay leads to them.

    torch.set_flush_denormal reaches the calling thread alone: the other threads of its pool, if they run already, keep
    theirs. Threads started later take over what the one that starts them has.
    """
    done: bool = torch.set_flush_denormal(flush)
    if _native.available():
        _native.library().fs_flush_denormals_everywhere(flush)
    return done
